import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { readWarnings, recordWarnings } from './warnings.ts'

test('warnings and errors are recorded, however the output is split; everything else is not', (t) => {
  const folder = mkdtempSync(path.join(tmpdir(), 'warren-warnings-'))
  t.after(() => rmSync(folder, { recursive: true }))
  const record = recordWarnings('/e2e/one.test.ts', folder)

  const lines = ['Warren is ready', '{"level":30,"msg":"a"}', '{"level":40,"msg":"b"}', '{"level":50,"msg":"c"}']
  const text = `${lines.join('\n')}\n{"level":60,"msg":"d"}\n{"level":50,"msg":"incomplete"`
  for (let at = 0; at < text.length; at += 7) record(text.slice(at, at + 7))

  assert.deepEqual(readWarnings(folder, '/e2e/one.test.ts', 2), ['{"level":50,"msg":"c"}', '{"level":60,"msg":"d"}'])
  assert.equal(readWarnings(folder, '/e2e/one.test.ts', 10).length, 3)
  assert.deepEqual(readWarnings(folder, '/e2e/other.test.ts', 10), [])
})
