import assert from 'node:assert/strict'
import { X509Certificate } from 'node:crypto'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { rootCertificates } from 'node:tls'
import { checkAuthorities } from '../doctor/authorities.ts'
import { digestOf, hasOperatorSettings, readOperatorSettings } from './operator-settings.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-ca-'))
after(() => rm(folder, { recursive: true }))
const [first, second] = rootCertificates as [string, string]
const canonical = (pem: string) => new X509Certificate(pem).toString()
const none = {
  guestCaFile: '',
  guestHttpProxy: undefined,
  guestHttpsProxy: undefined,
  guestNoProxy: '',
  guestHost: '169.254.2.1',
  cidr: '',
}

async function write(name: string, text: string): Promise<string> {
  await writeFile(path.join(folder, name), text)
  return path.join(folder, name)
}

test('without settings guests get nothing', async () => {
  const settings = await readOperatorSettings(none)

  assert.deepEqual(settings, { ca_certificates: [], default_envs: {} })
  assert.equal(hasOperatorSettings(settings), false)
})

test('each certificate of the file is passed once, with the variables of Node and Python', async () => {
  const file = await write('ca.pem', `# A comment\r\n${first}\n${second}\n${first.replaceAll('\n', '\r\n')}`)

  const settings = await readOperatorSettings({ ...none, guestCaFile: file })

  assert.deepEqual(settings.ca_certificates, [first, second].map(canonical))
  assert.equal(settings.default_envs.NODE_EXTRA_CA_CERTS, '/etc/ssl/certs/warren.pem')
  assert.equal(settings.default_envs.SSL_CERT_FILE, '/etc/ssl/certs/ca-certificates.crt')
  assert.equal(hasOperatorSettings(settings), true)
})

test('a file that is missing, empty or malformed is named in the error', async () => {
  const empty = await write('empty.pem', 'no certificate')
  const malformed = await write('bad.pem', '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n')

  for (const file of [path.join(folder, 'absent.pem'), empty, malformed]) {
    await assert.rejects(readOperatorSettings({ ...none, guestCaFile: file }), (error: Error) =>
      error.message.startsWith(`failed to read WARREN_GUEST_CA_FILE ${file}: `),
    )
  }
})

test('proxies are passed in lower and upper case, with the exceptions', async () => {
  const url = 'http://proxy:3128'
  const usual = await readOperatorSettings({ ...none, guestHttpsProxy: url })
  const given = await readOperatorSettings({ ...none, guestHttpProxy: url, guestNoProxy: 'localhost' })

  const direct = 'localhost,127.0.0.1,::1,169.254.2.1,100.64.0.0/10,.fc.local'
  assert.deepEqual(usual.default_envs, { https_proxy: url, HTTPS_PROXY: url, no_proxy: direct, NO_PROXY: direct })
  assert.equal(given.default_envs.NO_PROXY, 'localhost')
})

test('the key of a base changes with the settings and does not contain them', async () => {
  const first = await readOperatorSettings({ ...none, guestHttpProxy: 'http://ada:secret@proxy:3128' })
  const second = await readOperatorSettings({ ...none, guestHttpProxy: 'http://ada:other@proxy:3128' })

  assert.notEqual(digestOf(first), digestOf(second))
  assert.match(digestOf(first), /^[0-9a-f]{64}$/)
})

test('the doctor names authorities that this machine has and guests lack, and the setting', async () => {
  const local = await mkdtemp(path.join(folder, 'local-'))
  await writeFile(path.join(local, 'company.crt'), first)
  const file = await write('company.pem', `${second}\n${first}`)

  const lacking = await checkAuthorities('', [local, path.join(folder, 'absent')])
  const given = await checkAuthorities(file, [local])
  const plain = await checkAuthorities('', [])

  assert.ok(!lacking.ok)
  assert.match(lacking.detail, /^this machine trusts .+; guests do not/)
  assert.equal(lacking.fix, `set WARREN_GUEST_CA_FILE=${local}`)
  assert.deepEqual([given.ok, plain.ok], [true, true])
})
