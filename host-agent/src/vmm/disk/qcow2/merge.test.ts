import assert from 'node:assert/strict'
import { copyFile, mkdtemp, rm, truncate, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import fc from 'fast-check'
import { runCommand, runCommandOrThrow } from '../../../run-command.ts'
import { flattenDisk } from './flatten.ts'
import { mergeLayers } from './merge.ts'
import { createOverlay } from './overlay.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-merge-'))
after(() => rm(folder, { recursive: true }))
const skip = (await runCommand('sh', ['-c', 'command -v qemu-io'])).exitCode === 0 ? false : 'no qemu-io here'
const SIZE_MIB = 1100 // Three L2 tables.
const base = path.join(folder, 'base.raw')
await writeFile(base, Buffer.alloc(4 * 1024 * 1024, 'base'))
await truncate(base, SIZE_MIB * 1024 * 1024)

let count = 0
const newFile = () => path.join(folder, `${count++}.qcow2`)

/** A layer on top of `below`, written by these qemu-io commands. */
async function makeLayer(below: string, commands: string[], sizeMib = SIZE_MIB): Promise<string> {
  const file = newFile()
  await createOverlay(file, { sizeMib, backing: { file: below, format: below === base ? 'raw' : 'qcow2' } })
  if (commands.length === 0) return file
  await runCommandOrThrow('qemu-io', ['-d', 'unmap', ...commands.flatMap((one) => ['-c', one]), file])
  return file
}

/**
 * The merged layer has the same content as the chain, and `qemu-img check` finds no fault in it. The flattened disk has it too.
 */
async function assertSame(chain: string[]): Promise<void> {
  const flat = newFile()
  flattenDisk({ image: base, files: chain, out: flat })
  await runCommandOrThrow('qemu-img', ['compare', '-f', 'qcow2', '-F', 'raw', chain.at(-1)!, flat])
  await rm(flat)
  const merged = newFile()
  const sums = mergeLayers({ files: chain, out: merged, backing: base })
  await copyFile(merged, `${merged}.raw-backed`)
  await runCommandOrThrow('qemu-img', ['rebase', '-u', '-F', 'raw', '-b', base, `${merged}.raw-backed`])
  await runCommandOrThrow('qemu-img', ['compare', chain.at(-1)!, `${merged}.raw-backed`])
  const check = await runCommand('qemu-img', ['check', `${merged}.raw-backed`])
  assert.equal(check.exitCode, 0, check.stdout + check.stderr)
  assert.equal(sums.crcs.length, Math.ceil(sums.bytes / 1024 / 1024))
}

test('the newest content of each cluster is used, zeros included', { skip }, async () => {
  const first = await makeLayer(base, ['write -P 1 0 1M', 'write -P 1 600M 1M', 'write -P 1 1090M 64k'])
  const second = await makeLayer(first, ['write -P 2 64k 64k', 'write -z 128k 64k', 'discard 2M 1M'])
  const third = await makeLayer(second, ['write -P 3 601M 1M', 'discard 600M 128k', 'write -P 3 3k 1k'])

  await assertSame([first, second, third])
})

test('an empty layer changes nothing, and a disk that grew stays grown', { skip }, async () => {
  const first = await makeLayer(base, ['write -P 1 0 64k'])
  const empty = await makeLayer(first, [])
  const grown = await makeLayer(empty, ['write -P 2 2000M 1M'], 2_048)

  await assertSame([first, empty])
  await assertSame([first, empty, grown])
})

test('any writes in any order give the same content', { skip }, async () => {
  const command = fc
    .tuple(
      fc.constantFrom('write -P 7', 'write -P 9', 'write -z', 'discard'),
      fc.nat(40),
      fc.integer({ min: 1, max: 9 }),
    )
    .map(([what, at, length]) => `${what} ${at * 64}k ${length * 64}k`)
  const layer = fc.array(command, { maxLength: 5 })
  await fc.assert(
    fc.asyncProperty(fc.array(layer, { minLength: 1, maxLength: 4 }), async (layers) => {
      const chain: string[] = []
      for (const commands of layers) chain.push(await makeLayer(chain.at(-1) ?? base, commands))
      await assertSame(chain)
      for (const file of chain) await rm(file)
    }),
    { numRuns: 12 },
  )
})

test('a file that is not such a layer is refused', { skip }, async () => {
  const small = newFile()
  await runCommandOrThrow('qemu-img', ['create', '-q', '-f', 'qcow2', '-o', 'cluster_size=4096', small, '10M'])
  const out = newFile()

  assert.throws(() => mergeLayers({ files: [base], out, backing: base }), /not a qcow2 file/)
  assert.throws(() => mergeLayers({ files: [small], out, backing: base }), /not 64 KiB/)
})
