import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ConfigError, choice, decimal, flag, integer, linkLocalAddress, list, readConfig, text, url } from './config.ts'

const SETTINGS = {
  port: integer('PORT', { default: 8080, min: 0, max: 65_535, description: 'Port.' }),
  level: choice('LEVEL', { default: 'info', choices: ['info', 'debug'], description: 'Log level.' }),
  name: text('NAME', { default: 'warren', description: 'Name.' }),
  open: flag('OPEN', { default: false, description: 'Open to all.' }),
  names: list('NAMES', { description: 'Names.', defaultText: 'none' }),
  url: url('URL', { description: 'Address.' }),
}

test('a setting that is absent or empty has its default', () => {
  const defaults = { port: 8080, level: 'info', name: 'warren', open: false, names: [], url: undefined }

  assert.deepEqual(readConfig(SETTINGS, {}), defaults)
  assert.deepEqual(readConfig(SETTINGS, { PORT: '', LEVEL: '', NAMES: '', URL: '' }), defaults)
})

test('a value is parsed by the type of its setting', () => {
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

test('one error names every wrong setting and the values it accepts', () => {
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

test('a setting carries its default as text, for the documentation', () => {
  assert.deepEqual(
    Object.values(SETTINGS).map(({ defaultText }) => defaultText),
    ['8080', 'info', 'warren', 'off', 'none', ''],
  )
})

test('a link-local address is neither reserved nor that of the metadata service of clouds', () => {
  const settings = { host: linkLocalAddress('HOST', { default: '169.254.1.1', description: 'Address.' }) }

  assert.equal(readConfig(settings, {}).host, '169.254.1.1')
  assert.equal(readConfig(settings, { HOST: '169.254.20.255' }).host, '169.254.20.255')
  for (const bad of [
    '169.254.169.254',
    '169.254.0.1',
    '169.254.255.1',
    '169.254.1.256',
    '169.254.1',
    '10.0.0.1',
    'x',
  ]) {
    assert.throws(() => readConfig(settings, { HOST: bad }), /HOST must be an address from 169\.254\.1\.0/, bad)
  }
})

test('a decimal is read as a whole number of its smallest unit', () => {
  const settings = { price: decimal('PRICE', { default: '0.25', decimals: 3, max: 10, description: 'Price.' }) }
  const read = (PRICE: string) => readConfig(settings, { PRICE }).price

  assert.deepEqual(['', '0', '0.001', '1.5', '10'].map(read), [250, 0, 1, 1500, 10_000])
  for (const wrong of ['0.0001', '10.001', '-1', '1e3', '.5', '1.', 'x']) {
    assert.throws(() => read(wrong), /PRICE must be a number from 0 to 10 with at most 3 decimals/, wrong)
  }
})
