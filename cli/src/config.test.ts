import assert from 'node:assert/strict'
import { homedir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { ROOT, readCacheDir, readInstanceConfig } from './config.ts'

test('a relative data directory is relative to where the user typed the command', () => {
  const env = { WARREN_DATA_DIR: 'state', INIT_CWD: '/home/ada' }

  assert.equal(readInstanceConfig(env).dataDir, '/home/ada/state')
  assert.equal(readInstanceConfig({ ...env, WARREN_DATA_DIR: '~/state' }).dataDir, path.join(homedir(), 'state'))
  assert.equal(readInstanceConfig({}).dataDir, path.join(ROOT, '.warren'))
})

test('the cache directory is WARREN_CACHE_DIR, else below XDG_CACHE_HOME, else below the home directory', () => {
  const env = { WARREN_CACHE_DIR: 'cache', XDG_CACHE_HOME: '/var/cache', INIT_CWD: '/home/ada' }

  assert.equal(readCacheDir(env), '/home/ada/cache')
  assert.equal(readCacheDir({ ...env, WARREN_CACHE_DIR: '' }), '/var/cache/warren')
  assert.equal(readCacheDir({}), path.join(homedir(), '.cache/warren'))
})
