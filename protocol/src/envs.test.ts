import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import { checkEnvs, ENV_VALUE_MAX_BYTES, ENVS_MAX_BYTES, ENVS_MAX_ENTRIES, Envs } from './envs.ts'

const many = (count: number, value: string) =>
  Object.fromEntries(Array.from({ length: count }, (_, i) => [`N${String(i).padStart(3, '0')}`, value]))

test('ordinary variables are valid, also with an empty value', () => {
  assert.equal(checkEnvs({ PATH: '/usr/bin', _x1: '', NAME: 'é' }), undefined)
  assert.equal(checkEnvs({}), undefined)
})

test('the schema refuses names that a shell cannot use', () => {
  assert.ok(Value.Check(Envs, { A_1: 'x' }))
  assert.ok(!Value.Check(Envs, { '1A': 'x' }))
  assert.ok(!Value.Check(Envs, { 'A-B': 'x' }))
  assert.ok(!Value.Check(Envs, { A: 1 }))
})

test('an error names the variable and never its value', () => {
  assert.match(checkEnvs({ 'a b': 'secret' }) ?? '', /^"a b" is not a name/)
  assert.equal(checkEnvs({ KEY: 'secret\0' }), 'KEY must not contain a NUL character')
  assert.equal(
    checkEnvs({ KEY: 'é'.repeat(ENV_VALUE_MAX_BYTES / 2 + 1) }),
    `KEY must not be longer than ${ENV_VALUE_MAX_BYTES} bytes`,
  )
})

test('the limits are exact to the entry and to the byte', () => {
  assert.equal(checkEnvs(many(ENVS_MAX_ENTRIES, 'x')), undefined)
  assert.match(checkEnvs(many(ENVS_MAX_ENTRIES + 1, 'x')) ?? '', /64 entries/)

  const valueBytes = ENVS_MAX_BYTES / ENVS_MAX_ENTRIES - 'N000'.length
  const full = many(ENVS_MAX_ENTRIES, 'x'.repeat(valueBytes))
  assert.equal(checkEnvs(full), undefined)
  assert.match(checkEnvs({ ...full, N000: 'x'.repeat(valueBytes + 1) }) ?? '', /65536 bytes in all/)
})
