import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseAptSources } from './apt-sources.ts'
import { mmdebstrapArgs } from './debian.ts'
import { chooseMirror, findMirror, renderSources } from './mirror.ts'

const STANZAS = `Types: deb deb-src
# A comment that apt skips.
URIs: http://mirror.example/debian/
Suites: trixie trixie-updates
Components: main
Signed-By: /usr/share/keyrings/some.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: trixie

Types: deb
URIs:
 http://mirror.example/debian-security
Suites: trixie-security
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
`

const LINES = `# deb http://off.example/debian bookworm main
deb-src http://src.example/debian bookworm main
deb [arch=amd64 signed-by=/key.gpg] https://other.example/apt stable main
deb http://mirror.example/debian bookworm main contrib
deb http://security.example/debian-security bookworm-security main
`

test('both formats of apt sources are parsed, without disabled entries', () => {
  assert.deepEqual(parseAptSources('debian.sources', STANZAS), [
    {
      uris: ['http://mirror.example/debian/'],
      suites: ['trixie', 'trixie-updates'],
      signedBy: '/usr/share/keyrings/some.gpg',
    },
    { uris: ['http://mirror.example/debian-security'], suites: ['trixie-security'], signedBy: undefined },
  ])
  assert.deepEqual(parseAptSources('sources.list', LINES), [
    { uris: ['https://other.example/apt'], suites: ['stable'], signedBy: '/key.gpg' },
    { uris: ['http://mirror.example/debian'], suites: ['bookworm'], signedBy: undefined },
    { uris: ['http://security.example/debian-security'], suites: ['bookworm-security'], signedBy: undefined },
  ])
})

test('the Debian mirror is chosen, not another repository', () => {
  assert.deepEqual(chooseMirror(parseAptSources('sources.list', LINES), {}), {
    archive: 'http://mirror.example/debian',
    security: 'http://security.example/debian-security',
    signedBy: undefined,
  })
  assert.deepEqual(chooseMirror(parseAptSources('debian.sources', STANZAS), {}), {
    archive: 'http://mirror.example/debian',
    security: 'http://mirror.example/debian-security',
    signedBy: '/usr/share/keyrings/some.gpg',
  })
})

test('WARREN_DEBIAN_MIRROR is used instead of the sources of apt', () => {
  const ubuntu = [{ uris: ['http://archive.example/ubuntu'], suites: ['noble'] }]

  assert.equal(chooseMirror(ubuntu, {}), undefined)
  assert.deepEqual(chooseMirror(ubuntu, { WARREN_DEBIAN_MIRROR: 'http://mine.example/debian/' }), {
    archive: 'http://mine.example/debian',
    security: undefined,
  })
})

test('the mirror of this machine is found with its keyring', async (t) => {
  const mirror = await findMirror().catch((error: Error) => error)
  if (mirror instanceof Error) return t.skip(mirror.message)

  assert.match(mirror.archive, /^[a-z+]+:\/.*[^/]$/)
})

test('an image has the sources from which it was built', () => {
  const mirror = {
    archive: 'http://a.example/debian',
    security: 'http://s.example/debian-security',
    aptOptions: [],
    env: {},
  }

  const args = mmdebstrapArgs(mirror, { suite: 'trixie', packages: ['curl', 'busybox'] }, '/root-folder')

  assert.deepEqual(args.slice(-5), [
    'trixie',
    '/root-folder',
    'deb http://a.example/debian trixie main',
    'deb http://a.example/debian trixie-updates main',
    'deb http://s.example/debian-security trixie-security main',
  ])
  assert.ok(args.includes('--include=curl,busybox'))
  assert.equal(renderSources({ archive: 'http://a.example/debian' }, 'trixie').length, 2)
})
