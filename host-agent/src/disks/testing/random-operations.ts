/** Random operations on files of a mount and of an ordinary folder, which must give the same results. */
import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'

const FILE_MAX_BYTES = 300_000
const FOLDERS = ['a', 'b', 'a/c']
const SLOTS = 8
const RENAMED_FOLDERS = [
  ['a', 'd'],
  ['d', 'a'],
  ['a/c', 'a/e'],
  ['a/e', 'a/c'],
] as const

type Random = (limit: number) => number
type Pair = { real: number; copy: number }

/** The same seed gives the same operations. */
export function createRandom(seed: number): Random {
  let state = BigInt(seed)
  return (limit) => {
    state = (state * 6_364_136_223_846_793_005n + 1_442_695_040_888_963_407n) & 0xffff_ffff_ffff_ffffn
    return Number((state >> 33n) % BigInt(limit))
  }
}

export type RandomOperations = {
  run(count: number): void
  closeAll(): void
  /** Every file has the same content on both sides. */
  compare(): void
}

export function startRandomOperations(
  random: Random,
  real: string,
  copy: string,
  { renamesFolders }: { renamesFolders: boolean },
): RandomOperations {
  const open = new Map<number, Pair>()

  /** The results, or the codes of the errors, must be the same. */
  const both = (action: (root: string) => unknown): void =>
    assert.deepEqual(
      attempt(() => action(real)),
      attempt(() => action(copy)),
    )
  const chooseName = (): string => `${['', 'a/', 'b/', 'a/c/'][random(4)]}f${random(6)}`

  const close = (slot: number): void => {
    const pair = open.get(slot)
    open.delete(slot)
    if (pair) for (const file of [pair.real, pair.copy]) fs.closeSync(file)
  }

  const openFile = (slot: number, name: string, truncate: boolean): void => {
    const flags = fs.constants.O_RDWR | fs.constants.O_CREAT | (truncate ? fs.constants.O_TRUNC : 0)
    const [first, second] = [real, copy].map((root) => attempt(() => fs.openSync(path.join(root, name), flags)))
    if (typeof first === 'number' && typeof second === 'number') {
      close(slot)
      open.set(slot, { real: first, copy: second })
    } else assert.equal(String(first), String(second), `open of ${name}`)
  }

  const writeSome = (pair: Pair): void => {
    const offset = random(FILE_MAX_BYTES)
    const limit = [10, 5_000, 70_000][random(3)]!
    const data = Buffer.alloc(random(limit), random(256))
    for (const file of [pair.real, pair.copy]) fs.writeSync(file, data, 0, data.length, offset)
  }

  const readSome = (pair: Pair): void => {
    const [offset, length] = [random(FILE_MAX_BYTES), random(60_000)]
    assert.ok(readAt(pair.real, offset, length).equals(readAt(pair.copy, offset, length)), `read at ${offset}`)
  }

  const truncateFile = (pair: Pair): void => {
    const size = random(FILE_MAX_BYTES)
    for (const file of [pair.real, pair.copy]) fs.ftruncateSync(file, size)
  }

  const step = (): void => {
    const slot = random(SLOTS)
    const name = chooseName()
    const pair = open.get(slot)
    const action = random(20)
    if (action < 3) openFile(slot, name, random(4) === 0)
    else if (action === 14) close(slot)
    else if (action === 16) both((root) => fs.unlinkSync(path.join(root, name)))
    else if (action === 17) {
      const to = chooseName()
      both((root) => fs.renameSync(path.join(root, name), path.join(root, to)))
    } else if (action === 18) both((root) => fs.readFileSync(path.join(root, name)).toString('base64'))
    else if (action === 19) {
      if (!renamesFolders) return
      const [from, to] = RENAMED_FOLDERS[random(RENAMED_FOLDERS.length)]!
      both((root) => fs.renameSync(path.join(root, from), path.join(root, to)))
    } else if (pair === undefined) return
    else if (action < 9) writeSome(pair)
    else if (action < 13) readSome(pair)
    else if (action === 13) truncateFile(pair)
    else fs.fsyncSync(pair.real)
  }

  for (const folder of FOLDERS) both((root) => fs.mkdirSync(path.join(root, folder)))
  return {
    run(count) {
      for (let number = 0; number < count; number++) step()
    },
    closeAll() {
      for (const slot of [...open.keys()]) close(slot)
    },
    compare: () => assert.deepEqual(readAll(real), readAll(copy)),
  }
}

function attempt<T>(action: () => T): T | string {
  try {
    return action()
  } catch (error) {
    return String((error as NodeJS.ErrnoException).code)
  }
}

function readAt(file: number, offset: number, length: number): Buffer {
  const buffer = Buffer.alloc(length)
  let count = 0
  while (count < length) {
    const more = fs.readSync(file, buffer, count, length - count, offset + count)
    if (more === 0) break
    count += more
  }
  return buffer.subarray(0, count)
}

function readAll(root: string): Record<string, string> {
  const entries = fs.readdirSync(root, { recursive: true, withFileTypes: true })
  const files = entries.map((entry) => path.join(entry.parentPath, entry.name)).sort()
  return Object.fromEntries(
    files.map((file) => [
      path.relative(root, file),
      fs.lstatSync(file).isDirectory() ? 'folder' : fs.readFileSync(file).toString('base64'),
    ]),
  )
}
