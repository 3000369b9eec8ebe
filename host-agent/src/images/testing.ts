/** What several tests of images start from. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import type { TestContext } from 'node:test'
import koffi from 'koffi'
import { runCommandOrThrow } from '../run-command.ts'
import { type Build, openFolders } from './build.ts'
import type { Store } from './layout.ts'
import { TOOL_ENV } from './tools.ts'

export const IS_ROOT = process.getuid?.() === 0

export async function makeFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-images-'))
  t.after(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }))
  return folder
}

/** A cache of its own, gone after the test. */
export async function makeStore(t: TestContext): Promise<Store> {
  const store = { cacheDir: await makeFolder(t), log: { info: () => {}, warn: () => {} } }
  await openFolders(store)
  return store
}

/** For steps that are tested outside of a build. */
export const makeBuild = (folder: string): Build => ({ folder, progress: () => {}, signal: undefined })

/** What debugfs says of an ext4 file: no mount, so no root and no trace. */
export async function inspectExt4(file: string, request: string): Promise<string> {
  const { stdout } = await runCommandOrThrow('debugfs', ['-R', request, file], { env: TOOL_ENV })
  return stdout
}

/** cap_net_raw, permitted and effective, as the kernel keeps it (linux/capability.h, revision 2). */
const CAP_NET_RAW = Buffer.from('0100000200200000000000000000000000000000', 'hex')
export const CAPABILITY = /security\.capability \(20\) = 01 00 00 02 00 20 00 00 /

export function setCapability(file: string): void {
  const setxattr = koffi.load(null).func('int setxattr(str path, str name, void *value, size_t size, int flags)')
  if (setxattr(file, 'security.capability', CAP_NET_RAW, CAP_NET_RAW.length, 0) !== 0) {
    throw new Error(`could not give ${file} a capability`)
  }
}
