import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { mkdtemp, readdir, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { syncFolder, writeFileDurably } from './files.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-files-'))
after(() => rm(folder, { recursive: true }))

test('a file is replaced atomically, with its mode, and no temporary file remains', async () => {
  const file = path.join(folder, 'new', 'key')

  await writeFileDurably(file, 'one')
  await Promise.all([writeFileDurably(file, 'two'), writeFileDurably(file, 'three')])

  assert.match(await readFile(file, 'utf8'), /^(two|three)$/)
  assert.equal((await stat(file)).mode & 0o777, 0o600)
  assert.deepEqual(await readdir(path.dirname(file)), ['key'])
})

const skip = process.getuid?.() === 0 ? false : 'strace is installed by root'

test('the content is on disk before the file has its name, and the name before the write has settled', { skip }, () => {
  const file = path.join(folder, 'traced', 'record')
  const trace = path.join(folder, 'trace')
  const program = `import { writeFileDurably } from ${JSON.stringify(import.meta.resolve('./files.ts'))}
    await writeFileDurably(${JSON.stringify(file)}, 'x')
    process.stdout.write('settled')`
  execFileSync('strace', [
    ...['-f', '-y', '-o', trace, '-e', 'trace=fsync,fdatasync,?rename,?renameat,renameat2,write'],
    ...[process.execPath, '--input-type=module', '-e', program],
  ])

  const steps = listEnds(readFileSync(trace, 'utf8'))
    .filter((call) => call.includes('/traced') || call.includes('"settled"'))
    .map((call) => call.replace(/\.[0-9a-f]{12}/g, '.TEMPORARY'))

  assert.deepEqual(
    steps.map((call) => /^[a-z]+/.exec(call)?.[0]),
    ['write', 'fsync', 'rename', 'fsync', 'write'],
    steps.join('\n'),
  )
  assert.match(steps[1]!, /\.record\.TEMPORARY>/)
  assert.match(steps[3]!, /\/traced>/)
})

/** The calls in the order of their ends. strace prints a call in two parts if another thread is traced in between. */
function listEnds(trace: string): string[] {
  const begun = new Map<string, string>()
  return trace.split('\n').flatMap((line) => {
    const [, thread = '', call = ''] = /^(\d+) +(.*)$/.exec(line) ?? []
    if (call.includes('<unfinished ...>')) begun.set(thread, call)
    else if (call.includes(' resumed>')) return [begun.get(thread) ?? call]
    else return [call]
    return []
  })
}

test('a write that fails leaves no temporary file', async () => {
  const target = path.join(folder, 'a-folder')
  await writeFileDurably(path.join(target, 'inside'), 'x')

  await assert.rejects(writeFileDurably(target, 'x'))

  assert.deepEqual(
    (await readdir(folder)).filter((name) => name.includes('a-folder')),
    ['a-folder'],
  )
})

test('many files that are written to one folder at the same time are all there', async () => {
  const many = path.join(folder, 'many')
  const names = Array.from({ length: 50 }, (_, i) => `file-${i}`)

  await Promise.all(names.map((name) => writeFileDurably(path.join(many, name), name)))

  assert.deepEqual((await readdir(many)).sort(), names.sort())
  for (const name of names) assert.equal(await readFile(path.join(many, name), 'utf8'), name)
})

test('those who ask for a sync of a folder during another one share the next, which begins after it', async () => {
  const order: string[] = []
  const ask = (name: string) => {
    const sync = syncFolder(folder)
    void sync.then(() => order.push(name))
    return sync
  }
  const [first, second, third] = [ask('first'), ask('second'), ask('third')]

  assert.notEqual(first, second)
  assert.equal(second, third)
  await Promise.all([first, second, third])
  assert.deepEqual(order, ['first', 'second', 'third'])
  await assert.rejects(syncFolder(path.join(folder, 'missing')), { code: 'ENOENT' })
  await syncFolder(folder)
})
