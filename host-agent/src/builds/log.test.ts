import assert from 'node:assert/strict'
import { appendFile, mkdir, mkdtemp, rename, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import type { HostBuildLogLine } from '@warren/protocol'
import { BuildLog } from './log.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-build-log-'))
after(() => rm(folder, { recursive: true }))
let count = 0
const newFile = () => path.join(folder, `${count++}`, 'log.ndjson')
const ended = () => true
const textOf = (lines: HostBuildLogLine[]) => lines.map(({ stream }) => stream)

async function openLog(file = newFile(), maxBytes = 1e9): Promise<BuildLog> {
  const log = await BuildLog.open(file)
  log.beginAttempt(1, maxBytes)
  after(() => log.close())
  return log
}

test('output that arrives in pieces becomes numbered lines', async () => {
  const log = await openLog()
  const euro = Buffer.from('€')

  for (const piece of ['one\ntw', 'o\n', 'three ']) log.write(Buffer.from(piece))
  log.write(euro.subarray(0, 1))
  log.write(euro.subarray(1))
  log.writeLine('#1 DONE')

  const { lines } = await log.read(0, 0, ended)
  assert.deepEqual(textOf(lines), ['one\n', 'two\n', 'three €\n', '#1 DONE\n'])
  assert.deepEqual(
    lines.map(({ line, attempt }) => [line, attempt]),
    [1, 2, 3, 4].map((line) => [line, 1]),
  )
})

test('a line that is too long is split, and nothing of it is lost', async () => {
  const log = await openLog()
  const text = `${'x'.repeat(200_000)}\n`

  for (let at = 0; at < text.length; at += 30_000) log.write(Buffer.from(text.slice(at, at + 30_000)))

  const { lines } = await log.read(0, 0, ended)
  assert.ok(lines.length > 3 && lines.every(({ stream }) => Buffer.byteLength(stream) <= 64 * 1024))
  assert.equal(textOf(lines).join(''), text)
})

test('a reader gets every line once, however far it is behind', async () => {
  const log = await openLog()
  for (let n = 1; n <= 20_000; n++) log.writeLine(`line ${n} ${'.'.repeat(100)}`)

  let after = 0
  for (let reads = 0; ; reads++) {
    assert.ok(reads < 100)
    const { lines, ended: isEnd } = await log.read(after, 0, ended)
    for (const { line, stream } of lines) {
      assert.equal(line, ++after)
      assert.ok(stream.startsWith(`line ${line} `))
    }
    if (isEnd) break
  }

  assert.equal(after, 20_000)
})

test('beyond the limit one line says that the rest is dropped, and the last line is kept', async () => {
  const log = await openLog(newFile(), 100_000)
  const chunk = Buffer.from('\n'.repeat(10_000))

  for (let i = 0; i < 100; i++) log.write(chunk)
  assert.ok(log.isDropping)
  log.writeLine('#2 DONE')
  log.writeLastLine('ERROR: why')

  let last: HostBuildLogLine[] = []
  let after = 0
  for (let isEnd = false; !isEnd; ) {
    const read = await log.read(after, 0, ended)
    after += read.lines.length
    isEnd = read.ended
    if (read.lines.length > 0) last = read.lines
  }
  assert.ok(after < 2_000)
  assert.deepEqual(textOf(last.slice(-2)), ['The log is full. Further output is dropped.\n', 'ERROR: why\n'])
})

test('a reader waits for the next line, and for the end', async () => {
  const log = await openLog()
  let isEnded = false

  const waiting = log.read(0, 60_000, () => isEnded)
  log.writeLine('at last')
  assert.deepEqual(textOf((await waiting).lines), ['at last\n'])

  const end = log.read(1, 60_000, () => isEnded)
  isEnded = true
  log.notify()
  assert.deepEqual(await end, { lines: [], ended: true })
})

test('a reader of a cleared log notices an end that comes while it reads the file', async () => {
  const log = await openLog()
  log.writeLine('old')
  await log.clear()
  let isEnded = false

  const waiting = log.read(0, 600_000, () => isEnded)
  // Without a turn of the event loop, so before the file is open.
  for (let i = 0; i < 10; i++) await null
  isEnded = true
  log.notify()

  assert.deepEqual(await waiting, { lines: [], ended: true })
})

test('a log that was cleared because of its age continues with its next attempt, also in the next process', async () => {
  const file = newFile()
  const log = await openLog(file)
  for (let n = 1; n <= 600; n++) log.writeLine(`${n}`)

  await log.clear()
  assert.deepEqual(await log.read(0, 0, ended), { lines: [], ended: true })
  log.beginAttempt(2, 1e6)
  for (let n = 601; n <= 1_200; n++) log.writeLine(`${n}`)
  await log.settled()
  const again = await BuildLog.open(file)
  after(() => again.close())

  for (const one of [log, again]) {
    const { lines } = await one.read(700, 0, ended)
    assert.deepEqual(
      textOf(lines),
      Array.from({ length: 500 }, (_, i) => `${701 + i}\n`),
    )
    assert.deepEqual(
      (await one.read(0, 0, ended)).lines.map(({ line }) => line),
      Array.from({ length: 600 }, (_, i) => 601 + i),
    )
  }
})

test('the next process continues the numbers after a line that was cut by a crash', async () => {
  const file = newFile()
  const before = await openLog(file)
  for (let n = 1; n <= 1_000; n++) before.writeLine(`${n}`)
  await before.settled()
  const { size } = await stat(file)
  await appendFile(file, '{"line":1001,"attempt":1,"ts":"2026')

  const log = await BuildLog.open(file)
  after(() => log.close())
  assert.equal((await stat(file)).size, size)
  log.beginAttempt(2, 1e6)
  log.writeLine('again')

  const { lines } = await log.read(999, 0, ended)
  assert.deepEqual(
    lines.map(({ line, attempt, stream }) => [line, attempt, stream]),
    [
      [1_000, 1, '1000\n'],
      [1_001, 2, 'again\n'],
    ],
  )
})

test('lines that cannot be written are missing, the others are read, and readers wait for the next one', async () => {
  const file = newFile()
  const log = await openLog(file)
  for (let n = 1; n <= 200; n++) log.writeLine(`${n}`)
  await log.settled()

  await rename(file, `${file}.hidden`)
  await mkdir(file)
  for (let n = 201; n <= 300; n++) log.writeLine(`${n}`)
  await log.settled()
  await rm(file, { recursive: true })
  await rename(`${file}.hidden`, file)
  const waiting = log.read(300, 60_000, () => false)
  for (let n = 301; n <= 400; n++) log.writeLine(`${n}`)

  assert.equal((await waiting).lines[0]!.line, 301)
  for (const one of [log, await openLog(file)]) {
    assert.deepEqual(
      (await one.read(199, 0, ended)).lines.map(({ line }) => line),
      [200, ...Array.from({ length: 100 }, (_, i) => 301 + i)],
    )
    assert.equal((await one.read(256, 0, ended)).lines[0]!.line, 301)
  }
})
