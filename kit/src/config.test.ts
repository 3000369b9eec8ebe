import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ConfigError, choice, flag, integer, list, readConfig, text, url } from './config.ts'

const SETTINGS = {
  port: integer('PORT', 8080, { min: 0, max: 65_535 }),
  level: choice('LEVEL', 'info', ['info', 'debug']),
  name: text('NAME', 'warren'),
  open: flag('OPEN', false),
  names: list('NAMES'),
  url: url('URL'),
}

test('what is not set, or set to nothing, has its default', () => {
  const defaults = { port: 8080, level: 'info', name: 'warren', open: false, names: [], url: undefined }

  assert.deepEqual(readConfig(SETTINGS, {}), defaults)
  assert.deepEqual(readConfig(SETTINGS, { PORT: '', LEVEL: '', NAMES: '', URL: '' }), defaults)
})

test('what is set is parsed', () => {
  const env = { PORT: '0', LEVEL: 'debug', NAME: 'x', OPEN: 'yes', NAMES: 'a, b,,c', URL: 'http://x.test/path/' }

  assert.deepEqual(readConfig(SETTINGS, env), {
    port: 0,
    level: 'debug',
    name: 'x',
    open: true,
    names: ['a', 'b', 'c'],
    url: 'http://x.test/path',
  })
})

test('every wrong setting is named in one message, with what it should be', () => {
  const env = { PORT: '80x', LEVEL: 'loud', OPEN: 'perhaps', URL: 'ftp://x' }

  assert.throws(
    () => readConfig(SETTINGS, env),
    (error: Error) => {
      assert.ok(error instanceof ConfigError)
      for (const name of Object.keys(env)) assert.ok(error.message.includes(name), error.message)
      return /whole number from 0 to 65535/.test(error.message) && /info, debug/.test(error.message)
    },
  )
  for (const port of ['-1', '65536', '1e3', '0x10', ' 80']) {
    assert.throws(() => readConfig(SETTINGS, { PORT: port }), ConfigError, port)
  }
})
