import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { isSealed, keyIdOf, newSecretKey, openText, parseKey, renderKey, sealText } from './cipher.ts'

const key = newSecretKey()
const place = { table: 'sandbox_envs', column: 'envs', row: 'sb-1' }

test('what is sealed can be opened at the same place with the same key', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), (text) => {
      const sealed = sealText(key, place, text)
      assert.equal(openText(key, place, sealed), text)
      assert.ok(isSealed(sealed) && keyIdOf(sealed) === key.id)
      assert.ok(text.length < 4 || !sealed.includes(text))
    }),
  )
})

test('the same text is sealed differently each time', () => {
  assert.notEqual(sealText(key, place, 'x'), sealText(key, place, 'x'))
})

test('a sealed text cannot be opened in another row, column or table, or with another key', () => {
  const sealed = sealText(key, place, 'secret')

  for (const other of [
    { ...place, row: 'sb-2' },
    { ...place, column: 'secret' },
    { ...place, table: 'webhook_endpoints' },
  ]) {
    assert.throws(() => openText(key, other, sealed), /it was changed, or belongs to another row/)
  }
  assert.throws(() => openText(newSecretKey(), place, sealed), /is not a secret of key/)
})

test('a sealed text of which any character was changed cannot be opened', () => {
  const sealed = sealText(key, place, 'secret')
  const at = (position: number, character: string) => sealed.slice(0, position) + character + sealed.slice(position + 1)

  for (let position = 0; position < sealed.length - 1; position++) {
    const changed = at(position, sealed[position] === 'A' ? 'B' : 'A')
    assert.throws(() => openText(key, place, changed), /failed to decrypt/, `character ${position}`)
  }
  assert.throws(() => openText(key, place, sealed.slice(0, 40)), /failed to decrypt/)
})

test('a key is 32 bytes in hexadecimal or base64, and an error does not contain it', () => {
  assert.deepEqual(parseKey(renderKey(key)), key)
  assert.deepEqual(parseKey(key.bytes.toString('base64')), key)
  assert.deepEqual(parseKey(key.bytes.toString('base64url')), key)
  for (const bad of ['hunter2', `${renderKey(key)}00`, renderKey(key).slice(2), '']) {
    assert.throws(
      () => parseKey(bad),
      (error: Error) => /32 bytes/.test(error.message) && (bad === '' || !error.message.includes(bad)),
    )
  }
})
