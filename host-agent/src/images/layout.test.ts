import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readCacheDir } from './layout.ts'

test('the cache directory is WARREN_CACHE_DIR, else below XDG_CACHE_HOME, else below the home directory', () => {
  const env = { WARREN_CACHE_DIR: '/srv/cache', XDG_CACHE_HOME: '/var/cache', HOME: '/home/ada' }

  assert.equal(readCacheDir(env), '/srv/cache')
  assert.equal(readCacheDir({ ...env, WARREN_CACHE_DIR: '' }), '/var/cache/warren')
  assert.equal(readCacheDir({ HOME: '/home/ada' }), '/home/ada/.cache/warren')
})
