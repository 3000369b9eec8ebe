import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { decodeBase64, encodeBase64 } from './base64.ts'
import { checkSshPublicKeys, mergeSshPublicKeys, parseSshPublicKey } from './ssh-pubkeys.ts'

/** Made by ssh-keygen; nobody holds the other halves. */
const ED25519 = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKYWpOJznEv0bD+DmYcLNMZfOuMFYY4mk2IjpcxCWKzY'
const RSA =
  'ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC1J+TZ4d+LDq5+t85x67uE7wjDyUdDDjbYhANFFZ2gtgCL5noe+sDtx5hcZIzbS7BEuZJF0sZtLH8WLtppCWzY8sBl9J3tHhbzK0DXbzo6MJds/kPoEROGASY/UY3TpVUBj3rg86xOGifCqI5WNQWfIHxGRNhVW+63/xqUKMqOM7h8pAJzHnZMRLv2276veuTzk2v2ZcNxT4OrRFAMraNE6Ntj4uQf7RU42lhLw530K9dpjvyYhHWKWD+jskFjGdpz/sg5fGQzrL5+nShjlhEncnstQ3RzL6Xo6n87uy0WhdhywVp7K4ujiSrmTk2tW/v2L/y0QFwY4N+kQuTGQCrt'
const ECDSA256 =
  'ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBA81yoOgXDyR7luf7R/GAM/Uyf6Pp88VMXmRj1COVSyv+VeLEPyEGBQ9wanqEHMjwJjdrzzmcIdqAAUyON3bFTk='
const ECDSA384 =
  'ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBON94DqR3N8IDTwlXCx8j2SvxvsKnNPzD+gwfosmkDb9j6++lZ7xnCMtT5Tv5WFb8Fy0VfLgtIxpeeyTPm2rLORmM4eZZRHAyalH7JbhVPeEIUQ72qvaYj5AmJsXupBC+Q=='
const ECDSA521 =
  'ecdsa-sha2-nistp521 AAAAE2VjZHNhLXNoYTItbmlzdHA1MjEAAAAIbmlzdHA1MjEAAACFBABZsEM1A2AgObJkkJX+7mbg41CzyaKPyuxI/w03HOnGZczwBiGWKhkXcDR55FwBmOjdm/EAICHuY103aRsJih+SXQBi1zMvuZqJ+QFo5mLDTMlIF2M04+UjDh2RlLV1OG/Eh6DqhOlsG0RpiYPgcuIeZPuwoMasYcIzUc3IJxSC420bCQ=='

const field = (content: string | Uint8Array) => {
  const bytes = Buffer.from(content)
  const length = Buffer.alloc(4)
  length.writeUInt32BE(bytes.length)
  return Buffer.concat([length, bytes])
}
const line = (algorithm: string, ...fields: (string | Uint8Array)[]) =>
  `${algorithm} ${Buffer.concat([algorithm, ...fields].map(field)).toString('base64')}`
const bytesOf = (length: number, first: number) => new Uint8Array(length).fill(first, 0, 1).fill(7, 1)

test('keys made by ssh-keygen are keys, with a comment or without', () => {
  for (const key of [ED25519, RSA, ECDSA256, ECDSA384, ECDSA521]) {
    const parsed = parseSshPublicKey(`${key}  ada lovelace@example\n`)

    assert.ok(typeof parsed === 'object', String(parsed))
    assert.equal(parsed.algorithm, key.split(' ')[0])
    assert.equal(parsed.comment, 'ada lovelace@example')
    assert.equal(parsed.identity, key)
    assert.equal(typeof parseSshPublicKey(key), 'object')
  }
})

test('keys on a security token are keys', () => {
  const point = bytesOf(65, 4)

  assert.equal(typeof parseSshPublicKey(line('sk-ssh-ed25519@openssh.com', bytesOf(32, 1), 'ssh:')), 'object')
  assert.equal(
    typeof parseSshPublicKey(line('sk-ecdsa-sha2-nistp256@openssh.com', 'nistp256', point, 'ssh:')),
    'object',
  )
  assert.match(String(parseSshPublicKey(line('sk-ssh-ed25519@openssh.com', bytesOf(32, 1)))), /not a valid/)
})

test('the name before the blob must be the name inside it', () => {
  const disguised = ED25519.replace('ssh-ed25519', 'ssh-rsa')

  assert.equal(parseSshPublicKey(disguised), 'is not a key of the algorithm ssh-rsa')
})

test('a blob with the right name but the wrong insides is no key', () => {
  const exponent = Uint8Array.of(1, 0, 1)
  const bad = [
    line('ssh-ed25519'),
    line('ssh-ed25519', bytesOf(31, 1)),
    line('ssh-ed25519', bytesOf(32, 1), 'more'),
    line('ssh-rsa', exponent),
    line('ssh-rsa', exponent, bytesOf(96, 0x7f)),
    line('ssh-rsa', exponent, bytesOf(256, 0x80)),
    line('ssh-rsa', new Uint8Array(), bytesOf(256, 0x7f)),
    line('ecdsa-sha2-nistp256', 'nistp384', bytesOf(97, 4)),
    line('ecdsa-sha2-nistp256', 'nistp256', bytesOf(65, 2)),
    line('ecdsa-sha2-nistp256', 'nistp256', bytesOf(64, 4)),
  ]

  for (const key of bad) assert.match(String(parseSshPublicKey(key)), /not a valid/, key)
})

test('an RSA key of 1024 bits is just long enough', () => {
  const exponent = Uint8Array.of(1, 0, 1)

  assert.equal(typeof parseSshPublicKey(line('ssh-rsa', exponent, Uint8Array.of(0, ...bytesOf(128, 0x80)))), 'object')
  assert.match(String(parseSshPublicKey(line('ssh-rsa', exponent, bytesOf(128, 0x7f)))), /not a valid/)
})

test('anything cut off a key, or changed in its lengths, is noticed', () => {
  const [algorithm = '', base64 = ''] = ED25519.split(' ')
  const blob = decodeBase64(base64)!

  fc.assert(
    fc.property(fc.nat(blob.length - 1), (length) => {
      assert.equal(typeof parseSshPublicKey(`${algorithm} ${encodeBase64(blob.subarray(0, length))}`), 'string')
    }),
  )
})

test('what would be more than one plain line in authorized_keys is refused', () => {
  assert.match(String(parseSshPublicKey(`${ED25519} a\n${RSA}`)), /one line/)
  assert.match(String(parseSshPublicKey(`${ED25519} a\0b`)), /one line/)
  assert.match(String(parseSshPublicKey(`command="id" ${ED25519}`)), /must begin with/)
})

test('what people paste by mistake is named', () => {
  assert.match(String(parseSshPublicKey('-----BEGIN OPENSSH PRIVATE KEY-----\nabc')), /private key/)
  assert.match(String(parseSshPublicKey('ssh-dss AAAA')), /must begin with one of ssh-ed25519/)
  assert.match(String(parseSshPublicKey('')), /must begin with/)
  assert.match(String(parseSshPublicKey('ssh-ed25519')), /no valid base64/)
  assert.match(String(parseSshPublicKey('ssh-ed25519 !!!!')), /no valid base64/)
  assert.match(String(parseSshPublicKey(RSA.replace(/.$/, ''))), /no valid base64/)
  assert.match(String(parseSshPublicKey(`${ED25519} ${'x'.repeat(20_000)}`)), /longer than/)
})

test('a list is refused by its first bad key', () => {
  assert.equal(checkSshPublicKeys([]), undefined)
  assert.equal(checkSshPublicKeys([ED25519, RSA]), undefined)
  assert.match(checkSshPublicKeys([ED25519, 'ssh-rsa AAAA']) ?? '', /^key 2 is not a key of the algorithm ssh-rsa/)
})

test('the same key under another comment is the same key', () => {
  assert.deepEqual(mergeSshPublicKeys([`${ED25519} home`], [`${ED25519} work`, RSA, ` ${RSA}\n`]), [
    `${ED25519} home`,
    RSA,
  ])
})
