import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { test } from 'node:test'
import { SLOWNESS_VARIABLE } from './slowness.ts'

const MODULE = new URL('./slowness.ts', import.meta.url).href

function scaledWith(slowness: string | undefined): number {
  const program = `import { scaleLimit } from '${MODULE}'; console.log(scaleLimit(1000))`
  const env = { ...process.env, [SLOWNESS_VARIABLE]: slowness }
  return Number(execFileSync(process.execPath, ['--input-type=module', '-e', program], { env, encoding: 'utf8' }))
}

test('limits are multiplied by the measured factor, and never shortened', () => {
  assert.equal(scaledWith('2.5'), 2500)
  assert.equal(scaledWith('0.5'), 1000)
  assert.equal(scaledWith(undefined), 1000)
  assert.equal(scaledWith('nonsense'), 1000)
})
