import assert from 'node:assert/strict'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { compileCacheDir, pruneCompileCache } from './compile-cache.ts'

const DAY_MS = 24 * 60 * 60_000

test('code of other versions of Node and of clones that are not used any more is removed', async (t) => {
  const cacheDir = mkdtempSync(path.join(tmpdir(), 'compile-cache-'))
  t.after(() => rmSync(cacheDir, { recursive: true, force: true }))
  const now = new Date()
  const [own, used, unused] = ['/own', '/used', '/unused'].map((root) => compileCacheDir(cacheDir, root))
  const current = `${process.version}-${process.arch}-310b2ce3-0`
  const fill = (folder: string, usedAt: number) => {
    mkdirSync(folder, { recursive: true })
    writeFileSync(path.join(folder, 'code'), '')
    utimesSync(folder, new Date(usedAt), new Date(usedAt))
  }
  fill(path.join(own!, current), 0)
  fill(path.join(own!, 'v24.0.0-x64-310b2ce3-0'), 0)
  fill(used!, now.getTime() - 6 * DAY_MS)
  fill(unused!, now.getTime() - 8 * DAY_MS)

  await pruneCompileCache(own!, now)

  assert.deepEqual(readdirSync(own!), [current])
  assert.ok(existsSync(path.join(own!, current, 'code')))
  assert.ok(existsSync(used!))
  assert.ok(!existsSync(unused!))
})

test('the first start on a machine has nothing to remove', async (t) => {
  const cacheDir = mkdtempSync(path.join(tmpdir(), 'compile-cache-'))
  t.after(() => rmSync(cacheDir, { recursive: true, force: true }))

  await pruneCompileCache(compileCacheDir(cacheDir, '/own'))
})
