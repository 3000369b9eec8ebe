import assert from 'node:assert/strict'
import { copyFileSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import fc from 'fast-check'
import { loadMemory } from './load.ts'
import { PAGE_BYTES } from './pages.ts'
import { saveMemory } from './save.ts'
import { mapPrivately } from './testing.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-memory-'))
after(() => rm(folder, { recursive: true }))
const skip = process.getuid?.() === 0 ? false : 'the kernel shows whose pages are whose only to root'
const PAGES = 700
const MEM_BYTES = PAGES * PAGE_BYTES
let made = 0
const newFile = () => path.join(folder, `${made++}`)

/** Every third page of the base is empty, as in a real one. */
function makeBase(): string {
  const file = newFile()
  const bytes = Buffer.alloc(MEM_BYTES)
  for (let page = 0; page < PAGES; page++)
    if (page % 3 !== 0) bytes.fill(`base ${page} `, page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
  writeFileSync(file, bytes)
  return file
}

type Write = { page: number; zero: boolean }

/** A machine that wrote these pages, saved, and another that starts from the same base with what was saved. */
function saveAndLoad(writes: Write[], harm?: (file: string) => void) {
  const base = makeBase()
  const machine = mapPrivately(base, MEM_BYTES)
  for (const { page, zero } of writes) {
    machine.bytes.fill(zero ? 0 : `own ${page} `, page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
  }
  const file = newFile()
  const saved = saveMemory({ pid: process.pid, fd: machine.fd, memBytes: MEM_BYTES, file, sync: false })
  const expected = Buffer.from(machine.bytes)
  machine.close()
  harm?.(file)

  const copy = newFile()
  copyFileSync(base, copy)
  const next = mapPrivately(copy, MEM_BYTES)
  const wrong = loadMemory({ pid: process.pid, fd: next.fd, file, saved })
  const same = next.bytes.equals(expected)
  next.close()
  return { file, saved, wrong, same }
}

test('what a machine wrote is saved, and nothing else', { skip }, () => {
  const { saved, wrong, same } = saveAndLoad([
    { page: 1, zero: false },
    { page: 2, zero: true },
    { page: 300, zero: false },
  ])

  assert.deepEqual([wrong, same], [undefined, true])
  assert.deepEqual([saved.dirty_bytes, saved.data_bytes], [3 * PAGE_BYTES, 2 * PAGE_BYTES])
})

test('whatever was written, a page that became zero included, is there again', { skip }, () => {
  const writes = fc.array(fc.record({ page: fc.nat(PAGES - 1), zero: fc.boolean() }), { maxLength: 400 })
  fc.assert(
    fc.property(writes, (all) => {
      const { wrong, same } = saveAndLoad(all)
      return wrong === undefined && same
    }),
    { numRuns: 30 },
  )
})

test('a machine that wrote nothing, and one that wrote everything', { skip }, () => {
  const all = Array.from({ length: PAGES }, (_, page) => ({ page, zero: page % 50 === 0 }))

  assert.deepEqual([saveAndLoad([]).same, saveAndLoad(all).same], [true, true])
})

test('a file that lost or changed a single bit anywhere is not used', { skip }, () => {
  const writes = Array.from({ length: 400 }, (_, i) => ({ page: i, zero: i % 7 === 0 }))
  const flip = (at: (size: number) => number) => (file: string) => {
    const bytes = readFileSync(file)
    bytes[at(bytes.length)]! ^= 4
    rewrite(file, bytes)
  }
  const rewrite = (file: string, bytes: Buffer) => {
    truncateSync(file, 0)
    writeFileSync(file, bytes, { mode: 0o600 })
  }
  const harms: [string, (file: string) => void, RegExp][] = [
    ['its first byte', flip(() => 0), /MiB 0 has changed/],
    ['its middle', flip((size) => Math.floor(size / 2)), /has changed/],
    ['its index', flip((size) => size - 3), /has changed/],
    ['its end', (file) => truncateSync(file, statSync(file).size - 1), /bytes instead of/],
    ['all of it', (file) => truncateSync(file, 0), /0 bytes instead of/],
  ]
  for (const [what, harm, reason] of harms) assert.match(saveAndLoad(writes, harm).wrong ?? 'nothing', reason, what)
})
