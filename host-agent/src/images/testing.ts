/** Helpers for tests of images. */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import type { TestContext } from 'node:test'
import { openCgroups } from '../cgroups/cgroups.ts'
import { findCgroupLayout } from '../cgroups/layout.ts'
import { setExtendedAttribute } from '../ffi/extended-attribute.ts'
import { randomInstance } from '../net/testing/host.ts'
import { runCommandOrThrow } from '../run-command.ts'
import { VmmLauncher } from '../vmm/launcher-client.ts'
import { type Build, prepareFolders } from './build.ts'
import type { ImageCache } from './layout.ts'
import type { ToolDeps } from './run-on-file.ts'
import { TOOL_ENV } from './tools.ts'

export const IS_ROOT = process.getuid?.() === 0

export async function makeFolder(t: TestContext): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-images-'))
  t.after(() => rm(folder, { recursive: true, force: true, maxRetries: 5 }))
  return folder
}

/** Creates an empty cache that is removed after the test. */
export async function makeCache(t: TestContext): Promise<ImageCache> {
  const cache = { cacheDir: await makeFolder(t), log: { info: () => {}, warn: () => {} } }
  await prepareFolders(cache)
  return cache
}

/** For testing a step outside of a build. */
export const makeBuild = (folder: string): Build => ({ folder, progress: () => {}, signal: undefined })

const layout = await findCgroupLayout()
export const skipTools = !IS_ROOT
  ? 'needs root: runs programs as another user'
  : layout === undefined && 'needs cgroups with the cpu and memory controllers'

/** For running tools on hostile files (run-on-file.ts). */
export async function makeToolDeps(t: TestContext): Promise<ToolDeps> {
  const instance = randomInstance()
  const launcher = new VmmLauncher(instance)
  const cgroups = await openCgroups(layout!, instance) // Tests are skipped without it.
  const cacheDir = await makeFolder(t)
  t.after(async () => {
    await launcher.close()
    await cgroups.close()
  })
  return { launcher, cgroups, config: { cacheDir } }
}

/** Runs a request of debugfs on an ext4 file. It needs no mount and therefore no root. */
export async function inspectExt4(file: string, request: string): Promise<string> {
  const { stdout } = await runCommandOrThrow('debugfs', ['-R', request, file], { env: TOOL_ENV })
  return stdout
}

/** cap_net_raw, permitted and effective, in the format of the kernel (linux/capability.h, revision 2). */
const CAP_NET_RAW = Buffer.from('0100000200200000000000000000000000000000', 'hex')
export const CAPABILITY = /security\.capability \(20\) = 01 00 00 02 00 20 00 00 /

export const setCapability = (file: string): void => setExtendedAttribute(file, 'security.capability', CAP_NET_RAW)
