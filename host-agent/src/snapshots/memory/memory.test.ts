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
const skip = process.getuid?.() === 0 ? false : 'needs root to read /proc/PID/pagemap'
const PAGES = 700
const MEM_BYTES = PAGES * PAGE_BYTES
let fileCount = 0
const newFile = () => path.join(folder, `${fileCount++}`)

/** Every third page of the base is zero, as a real base has zero pages too. */
function makeBase(): string {
  const file = newFile()
  const bytes = Buffer.alloc(MEM_BYTES)
  for (let page = 0; page < PAGES; page++)
    if (page % 3 !== 0) bytes.fill(`base ${page} `, page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
  writeFileSync(file, bytes)
  return file
}

type Write = { page: number; zero: boolean }

/** Saves a VM that wrote these pages, and loads them into another one on the same base. */
function saveAndLoad(writes: Write[], damage?: (file: string) => void) {
  const base = makeBase()
  const vm = mapPrivately(base, MEM_BYTES)
  for (const { page, zero } of writes) {
    vm.bytes.fill(zero ? 0 : `private ${page} `, page * PAGE_BYTES, (page + 1) * PAGE_BYTES)
  }
  const file = newFile()
  const saved = saveMemory({ pid: process.pid, fd: vm.fd, memBytes: MEM_BYTES, file, sync: false })
  const expected = Buffer.from(vm.bytes)
  vm.close()
  damage?.(file)

  const copy = newFile()
  copyFileSync(base, copy)
  const next = mapPrivately(copy, MEM_BYTES)
  const wrong = loadMemory({ pid: process.pid, fd: next.fd, file, saved })
  const same = next.bytes.equals(expected)
  next.close()
  return { file, saved, wrong, same }
}

test('exactly the written pages are saved', { skip }, () => {
  const { saved, wrong, same } = saveAndLoad([
    { page: 1, zero: false },
    { page: 2, zero: true },
    { page: 300, zero: false },
  ])

  assert.deepEqual([wrong, same], [undefined, true])
  assert.deepEqual([saved.dirty_bytes, saved.data_bytes], [3 * PAGE_BYTES, 2 * PAGE_BYTES])
})

test('loading restores every written page, including pages that became zero', { skip }, () => {
  const writes = fc.array(fc.record({ page: fc.nat(PAGES - 1), zero: fc.boolean() }), { maxLength: 400 })
  fc.assert(
    fc.property(writes, (all) => {
      const { wrong, same } = saveAndLoad(all)
      return wrong === undefined && same
    }),
    { numRuns: 30 },
  )
})

test('a VM that wrote no page and one that wrote every page are restored', { skip }, () => {
  const all = Array.from({ length: PAGES }, (_, page) => ({ page, zero: page % 50 === 0 }))

  assert.deepEqual([saveAndLoad([]).same, saveAndLoad(all).same], [true, true])
})

test('a file with a changed bit or a missing byte is rejected', { skip }, () => {
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
  const damages: [string, (file: string) => void, RegExp][] = [
    ['first byte', flip(() => 0), /MiB 0 does not match/],
    ['middle', flip((size) => Math.floor(size / 2)), /does not match/],
    ['index', flip((size) => size - 3), /does not match/],
    ['last byte missing', (file) => truncateSync(file, statSync(file).size - 1), /bytes instead of/],
    ['empty file', (file) => truncateSync(file, 0), /0 bytes instead of/],
  ]
  for (const [what, damage, reason] of damages)
    assert.match(saveAndLoad(writes, damage).wrong ?? 'nothing', reason, what)
})
