/** What the validator of uploads accepts and refuses. Refusals name the field or the entry. */
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { makeZip, type ZipEntry } from '../testing/zip.ts'
import { BodyFault } from './fault.ts'
import { type BodyLimits, parseBody } from './parse-body.ts'

const LIMITS: BodyLimits = {
  expandedMaxBytes: 100 * 1024 * 1024,
  fileMaxBytes: 25_000_000,
  entriesMax: 10_000,
  reservedNames: [],
}
const base64 = (content: Buffer | string): string => Buffer.from(content).toString('base64')
const filesUpload = (...paths: string[]) => ({
  type: 'files',
  files: paths.map((one) => ({ path: one, content: base64(`content of ${one}`) })),
})
const zipUpload = (entries: ZipEntry[], options?: { statedCount?: number }) => ({
  type: 'zip',
  data: base64(makeZip(entries, options)),
})
const bodyWith = (more: object): Record<string, unknown> => ({
  uniqueName: 'my-site',
  displayName: 'My site',
  upload: filesUpload('index.html'),
  ...more,
})
const parse = (body: unknown, limits = LIMITS) =>
  parseBody(Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)), limits)

async function faultOf(body: unknown, limits = LIMITS): Promise<string> {
  try {
    await parse(body, limits)
  } catch (error) {
    if (error instanceof BodyFault) return `${error.field}: ${error.message}`
    throw error
  }
  return 'accepted'
}
const uploadFault = (upload: unknown, limits = LIMITS) => faultOf(bodyWith({ upload }), limits)

/** Unpacks an archive with the system's tar, as a sandbox does. */
async function unpack(archive: Uint8Array): Promise<Record<string, string>> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-tar-'))
  try {
    await writeFile(path.join(folder, 'a.tar.gz'), archive)
    execFileSync('tar', ['-xzf', 'a.tar.gz'], { cwd: folder })
    const names = execFileSync('tar', ['-tzf', 'a.tar.gz', '--quoting-style=literal'], {
      cwd: folder,
      encoding: 'utf8',
    })
    const entries = names
      .trim()
      .split('\n')
      .map(async (name) => {
        const { mode } = await stat(path.join(folder, name))
        const content = await readFile(path.join(folder, name), 'utf8')
        return [name, `${(mode & 0o777).toString(8)} ${content}`] as const
      })
    return Object.fromEntries(await Promise.all(entries))
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

test('files and a zip of the same project give the same archive', async () => {
  const paths = ['index.html', 'css/site.css', `deep/${'long-name-'.repeat(12)}/é.txt`]
  const files = await parse(bodyWith({ upload: filesUpload(...paths) }))
  const entries = paths.map((name) => ({ name, content: `content of ${name}` }))
  const zip = await parse(bodyWith({ upload: zipUpload([{ name: 'css/', mode: 0o040755 }, ...entries]) }))

  assert.equal(files.uploadDigest, zip.uploadDigest)
  assert.deepEqual(
    await unpack(zip.archive),
    Object.fromEntries(paths.toSorted().map((one) => [one, `644 content of ${one}`])),
  )
})

test('a zip keeps executable bits, loses one common folder, and the history of a repository', async () => {
  const entries = [
    { name: 'project/run.sh', content: 'run', mode: 0o100755 },
    { name: 'project/.git/config', content: 'secret' },
    { name: 'project/.git/', mode: 0o040755 },
    { name: 'project/.gitignore', content: 'node_modules' },
    { name: 'project/sub/.git/HEAD', content: 'x' },
  ]
  const { archive } = await parse(bodyWith({ upload: zipUpload(entries) }))

  assert.deepEqual(await unpack(archive), { '.gitignore': '644 node_modules', 'run.sh': '755 run' })
})

test('paths that leave the project, or that some system reads differently, are refused in both forms', async () => {
  const wrong = [
    '../evil',
    'a/../../evil',
    '/etc/passwd',
    'a\\..\\evil',
    'C:/evil',
    'c:evil',
    'a//b',
    './a',
    'a/./b',
    'a/..',
    'a\0b',
    'a\nb',
    'a\u0085b',
    'x'.repeat(513),
    Array(33).fill('d').join('/'),
    '',
  ]
  for (const name of wrong) {
    assert.match(await uploadFault(filesUpload('ok', name)), /^upload: /, JSON.stringify(name))
    // The zip reader refuses some of them itself, with another text.
    const zipped = await uploadFault(zipUpload([{ name: 'ok' }, { name, content: 'x' }]))
    assert.match(zipped, /^upload(\.data)?: /, JSON.stringify(name))
  }
  assert.match(await uploadFault(filesUpload('a\ud800')), /Unicode|base64/)
  assert.equal(await uploadFault(filesUpload(Array(32).fill('d').join('/'), '..a', 'b..', '...')), 'accepted')
})

test('names that are equal by case or Unicode form are refused, and a file that is also a directory', async () => {
  const clashes = [
    ['a.txt', 'a.txt'],
    ['README', 'readme'],
    ['caf\u00e9', 'cafe\u0301'],
    ['stra\u00dfe', 'STRASSE'],
    ['a', 'a/b'],
    ['a/b', 'a'],
    ['A', 'a/b'],
    ['Src/a', 'src/b'],
  ]
  for (const names of clashes) {
    assert.match(await uploadFault(filesUpload(...names)), /twice|spelling|both a file/, names.join(' '))
    assert.match(
      await uploadFault(zipUpload(names.map((name) => ({ name, content: 'x' })))),
      /twice|spelling|both a file/,
    )
  }
  const directories = [{ name: 'd/', mode: 0o040755 }, { name: 'd/a' }, { name: 'e/a' }, { name: 'e/', mode: 0o040755 }]
  assert.equal(await uploadFault(zipUpload(directories)), 'accepted')
})

test('symlinks, devices, encrypted entries and unknown methods in a zip are refused by name', async () => {
  const cases: [ZipEntry, RegExp][] = [
    [{ name: 'link', content: '/etc/passwd', mode: 0o120777 }, /"link" is neither/],
    [{ name: 'dir-link/', mode: 0o120777 }, /"dir-link" is neither/],
    [{ name: 'device', mode: 0o020666 }, /"device" is neither/],
    [{ name: 'pipe', mode: 0o010666 }, /"pipe" is neither/],
    [{ name: 'odd/', mode: 0o100644 }, /"odd" is neither/],
    [{ name: 'locked', content: 'x', flags: 0x801 }, /"locked" is encrypted/],
    [{ name: 'lzma', content: 'x', method: 14 }, /"lzma" uses the unknown compression method 14/],
    [{ name: 'full/', content: 'data', mode: 0o040755 }, /"full" is a directory with content/],
  ]
  for (const [entry, text] of cases) assert.match(await uploadFault(zipUpload([{ name: 'ok' }, entry])), text)
})

test('bombs: stated sizes are refused before inflating, lying ones while inflating', async () => {
  const limits = { ...LIMITS, expandedMaxBytes: 3_000_000, fileMaxBytes: 1_000_000 }
  const zeros = Buffer.alloc(900_000)
  const many = Array.from({ length: 4 }, (_, i) => ({ name: `zeros-${i}`, content: zeros }))

  assert.match(
    await uploadFault(zipUpload([{ name: 'big', content: Buffer.alloc(1_000_001) }]), limits),
    /"big" must not be larger/,
  )
  assert.match(await uploadFault(zipUpload(many), limits), /^upload: must not be larger than 3000000 bytes in all/)
  const liar = { name: 'liar', content: Buffer.alloc(50_000_000), statedSize: 10 }
  assert.match(await uploadFault(zipUpload([liar]), limits), /"liar" (cannot be read|is larger)/)
  const modest = { name: 'modest', content: 'short', statedSize: 1000 }
  assert.match(await uploadFault(zipUpload([modest]), limits), /"modest" (cannot be read|is smaller)/)
  const stored = { name: 'stored', content: 'short', method: 0, statedSize: 1000 }
  assert.match(await uploadFault(zipUpload([stored]), limits), /stored|not a valid zip/)
  const corrupt = { name: 'corrupt', content: 'text', statedCrc: 1 }
  assert.match(await uploadFault(zipUpload([corrupt]), limits), /"corrupt" does not match its checksum/)
})

test('the number of entries is checked before they are read', async () => {
  const limits = { ...LIMITS, entriesMax: 3 }
  const entries = Array.from({ length: 4 }, (_, i) => ({ name: `f${i}` }))

  assert.match(await uploadFault(zipUpload(entries), limits), /more than 3 entries/)
  const understated = await parse(bodyWith({ upload: zipUpload(entries, { statedCount: 1 }) }), limits)
  assert.deepEqual(Object.keys(await unpack(understated.archive)), ['f0'], 'what is not stated is not read')
  assert.match(await uploadFault(filesUpload('a', 'b', 'c', 'd'), limits), /more than 3 entries/)
  assert.equal(await uploadFault(filesUpload('a', 'b', 'c'), limits), 'accepted')
})

test('bytes that are not a zip file are refused, whatever they are', async () => {
  const zip = makeZip([{ name: 'a', content: 'hello' }])
  const wrong = [
    Buffer.alloc(0),
    Buffer.from('hello'),
    zip.subarray(0, 40),
    Buffer.concat([zip, Buffer.alloc(70_000, 1)]),
  ]
  for (const bytes of wrong) {
    assert.match(await uploadFault({ type: 'zip', data: base64(bytes) }), /^upload\.data: is not a valid zip file/)
  }
})

test('base64 is strict: junk, missing padding and the URL alphabet are refused', async () => {
  for (const content of ['aGk', 'aGk=\n', 'a Gk=', 'aG-_', '!!!!', 'aGk==', 'aGl=x', 'aGl=']) {
    const upload = { type: 'files', files: [{ path: 'a', content }] }
    const expected = content === 'aGl=' ? /not valid base64|accepted/ : /"a" is not valid base64/
    assert.match(await uploadFault(upload), expected, content)
    assert.match(await uploadFault({ type: 'zip', data: `${content}*` }), /^upload\.data: is not valid base64/)
  }
  assert.equal(await uploadFault({ type: 'files', files: [{ path: 'empty', content: '' }] }), 'accepted')
})

test('uploads without files or of another shape are refused', async () => {
  for (const upload of [
    undefined,
    null,
    [],
    'zip',
    {},
    { type: 'tar' },
    { type: 'files' },
    { type: 'files', files: {} },
    { type: 'files', files: [] },
    { type: 'files', files: [null] },
    { type: 'files', files: [{ path: 'a' }] },
    { type: 'files', files: [{ path: 1, content: '' }] },
    { type: 'zip' },
    { type: 'zip', data: 5 },
    zipUpload([]),
    zipUpload([{ name: 'only-a-folder/', mode: 0o040755 }]),
    zipUpload([{ name: '.git/config' }]),
  ]) {
    assert.match(await uploadFault(upload), /^upload/, JSON.stringify(upload))
  }
})

test('files that look secret are kept, and the answer warns', async () => {
  const upload = filesUpload('.env', '.env.local', 'id_rsa', 'index.html')
  upload.files.push({ path: 'server.key', content: base64('-----BEGIN EC PRIVATE KEY-----\nabc') })

  const { warnings } = await parse(bodyWith({ upload }))

  assert.equal(warnings.length, 1)
  assert.match(warnings[0]!, /\.env, \.env\.local, id_rsa, server\.key/)
  assert.doesNotMatch(warnings[0]!, /index\.html/)
})

test('fields: every rule refuses by the name of the field', async () => {
  const cases: [object, RegExp | 'accepted'][] = [
    [{ uniqueName: undefined }, /^uniqueName: /],
    [{ uniqueName: 'ab' }, /^uniqueName: /],
    [{ uniqueName: 'a'.repeat(64) }, /^uniqueName: /],
    [{ uniqueName: '-abc' }, /^uniqueName: /],
    [{ uniqueName: 'abc-' }, /^uniqueName: /],
    [{ uniqueName: 'a.b.c' }, /^uniqueName: /],
    [{ uniqueName: 'abc\n' }, /^uniqueName: /],
    [{ uniqueName: 'GateWay' }, /^uniqueName: gateway is reserved/],
    [{ uniqueName: 'mine' }, /^uniqueName: mine is reserved/],
    [{ uniqueName: 'A1-b' }, 'accepted'],
    [{ displayName: '' }, /^displayName: /],
    [{ displayName: 'x'.repeat(101) }, /^displayName: /],
    [{ displayName: '😀'.repeat(100) }, 'accepted'],
    [{ displayName: 'a\u0007' }, /^displayName: /],
    [{ displayName: 'half \ud800' }, /^displayName: /],
    [{ description: 'x'.repeat(2049) }, /^description: /],
    [{ description: 'nul \0' }, /^description: /],
    [{ description: null }, 'accepted'],
    [{ months: 0 }, /^months: /],
    [{ months: 13 }, /^months: /],
    [{ months: 1.5 }, /^months: /],
    [{ months: '2' }, /^months: /],
    [{ months: null }, 'accepted'],
    [{ settings: [] }, /^settings: /],
    [{ settings: { port: 0 } }, /^settings\.port: /],
    [{ settings: { port: '80' } }, /^settings\.port: /],
    [{ settings: { runtime: 'php' } }, /^settings\.runtime: /],
    [{ settings: { framework: 'rails' } }, /^settings\.framework: /],
    [{ settings: { useBuildAI: 'yes' } }, /^settings\.useBuildAI: /],
    [{ settings: { runCommand: 'x'.repeat(256) } }, /^settings\.runCommand: /],
    [{ settings: { runCommand: 'a\0b' } }, /^settings\.runCommand: /],
    [{ settings: { runCommand: '\udc00' } }, /^settings\.runCommand: /],
    [{ settings: { directoryPath: '../up' } }, /^settings\.directoryPath: /],
    [{ settings: { buildDir: '/abs' } }, /^settings\.buildDir: /],
    [{ settings: { buildDir: './dist/', unknown: 1, runCommand: '', framework: null } }, 'accepted'],
    [{ settings: { runEnvs: [] } }, /^settings\.runEnvs: /],
    [{ settings: { runEnvs: { A: 1 } } }, /^settings\.runEnvs: /],
    [{ settings: { runEnvs: { '1A': 'x' } } }, /^settings\.runEnvs: /],
    [{ settings: { buildVars: { A: 'x'.repeat(4097) } } }, /^settings\.buildVars: /],
    [
      { settings: { runEnvs: Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`A${i}`, ''])) } },
      /^settings\.runEnvs: /,
    ],
  ]
  for (const [more, expected] of cases) {
    const found = await faultOf(bodyWith(more), { ...LIMITS, reservedNames: ['Mine'] })
    if (expected === 'accepted') assert.equal(found, 'accepted', JSON.stringify(more))
    else assert.match(found, expected, JSON.stringify(more))
  }
})

test('bodies that are not a JSON object are refused', async () => {
  for (const body of ['', '{', 'null', '[]', '"text"', '5']) assert.match(await faultOf(body), /^body: /, body)
  await assert.rejects(parseBody(Buffer.from([0x7b, 0xff, 0x7d]), LIMITS), /not valid JSON/)
})

test('millions of tiny or nested values are refused before they are parsed', async () => {
  for (const body of ['['.repeat(3_000_000), `[${'{},'.repeat(1_000_000)}0]`]) {
    assert.equal(await faultOf(body), 'body: has too many values')
  }
})

test('a key called __proto__ is a plain variable and changes nothing else', async () => {
  const text = JSON.stringify(bodyWith({ settings: 0 })).replace(
    '"settings":0',
    '"settings":{"__proto__":{"port":9},"runEnvs":{"__proto__":"x","A":"b"}}',
  )
  const { settings, secrets } = await parse(text)

  assert.equal(settings.port, null) // Not given; a deployment then takes that of the Dockerfile, or 3000.
  assert.deepEqual(Object.entries(secrets.runEnvs!), [
    ['__proto__', 'x'],
    ['A', 'b'],
  ])
})
