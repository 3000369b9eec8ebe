/**
 * What the guest's kernel starts with: the agent as /init and the modules that bring the disk, so that any root
 * filesystem boots and none has to hold the agent (guest-agent/src/boot.rs).
 */
import { createHash } from 'node:crypto'
import { readdir, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { gzipSync } from 'node:zlib'
import { type BuildOptions, buildOnce, place } from './build.ts'
import { type CpioEntry, renderCpio } from './cpio.ts'
import type { Kernel } from './kernel.ts'
import { digestOf, folderOf, pathOf, type Store } from './layout.ts'

export type Initramfs = { path: string; digest: string }

const UNWANTED_AFTER_MS = 30 * 24 * 3_600_000

/** A new agent or another kernel gives another initramfs; the same ones give the same. */
export async function ensureInitramfs(
  store: Store,
  kernel: Pick<Kernel, 'bootModules'>,
  agentPath: string,
  options: BuildOptions = {},
): Promise<Initramfs> {
  const archive = await packInitramfs(agentPath, kernel.bootModules)
  const digest = digestOf(createHash('sha256').update(archive).digest('hex'))
  const file = pathOf(store, 'initramfs', folderOf(digest))
  // Its time of change tells when it was last wanted.
  const find = () =>
    utimes(file, new Date(), new Date()).then(
      () => ({ path: file, digest }),
      () => undefined,
    )
  return buildOnce(store, 'initramfs', options, find, async ({ folder }) => {
    const fresh = path.join(folder, 'initramfs')
    await writeFile(fresh, gzipSync(archive), { mode: 0o444 })
    await place(fresh, file)
    return { path: file, digest }
  })
}

/** Every version of the agent leaves one behind; whoever still wants an old one has it made again in a moment. */
export async function sweepInitramfs(store: Store, now = Date.now()): Promise<void> {
  for (const name of await readdir(pathOf(store, 'initramfs'))) {
    const file = pathOf(store, 'initramfs', name)
    const found = await stat(file).catch(() => undefined) // another start removed it a moment ago
    if (found && now - found.mtimeMs > UNWANTED_AFTER_MS) await rm(file, { force: true })
  }
}

/** The modules in the order they load. */
export async function packInitramfs(agentPath: string, modules: readonly string[]): Promise<Buffer> {
  const agent = await readAgent(agentPath)
  const packed = await Promise.all(modules.map(packModule))
  return renderCpio([
    { type: 'directory', path: 'dev' },
    // The kernel opens it for /init before anything is mounted.
    { type: 'character-device', path: 'dev/console', major: 5, minor: 1 },
    ...['proc', 'sys', 'newroot', 'modules'].map((name): CpioEntry => ({ type: 'directory', path: name })),
    ...packed,
    {
      type: 'file',
      path: 'modules/order',
      data: Buffer.from(modules.map((file) => `${path.basename(file)}\n`).join('')),
    },
    { type: 'file', path: 'init', mode: 0o755, data: agent },
  ])
}

const ELF_MAGIC = Buffer.from('\x7fELF', 'latin1')

async function readAgent(file: string): Promise<Buffer> {
  const agent = await readFile(file).catch((error) => {
    throw new Error(`there is no guest agent at ${file}: build it first`, { cause: error })
  })
  if (!agent.subarray(0, ELF_MAGIC.length).equals(ELF_MAGIC))
    throw new Error(`the guest agent at ${file} is no program`)
  return agent
}

const packModule = async (file: string): Promise<CpioEntry> => ({
  type: 'file',
  path: `modules/${path.basename(file)}`,
  data: await readFile(file),
})
