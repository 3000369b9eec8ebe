/** `buildah bud` on the same root file system: builds of Dockerfiles in a container, without a separate kernel. */
import { execFile } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { errorText } from '@warren/kit/error-text'
import type { Fixture } from '../row.ts'
import { Skip } from '../skip.ts'
import { bareParts } from './bare-parts.ts'

const run = promisify(execFile)

const INSTALL = ['install', '-y', '--no-install-recommends', 'buildah', 'runc']
const INSTALL_LIMIT_MS = 5 * 60_000
const LIMITS = ['--ulimit', 'nofile=20000:20000', '--ulimit', 'nproc=4096:4096']
const BASE = 'localhost/debian:13'

/** Builds the Dockerfile, whose FROM is debian:13. */
export type BuildahBud = (dockerfile: string, options: { cache: boolean }) => Promise<void>

export const buildah: Fixture<BuildahBud> = async (benchRun) => {
  await install(benchRun.report)
  const { image } = await benchRun.open(bareParts)
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-buildah-'))
  benchRun.defer(() => rm(folder, { recursive: true, force: true }))
  const root = path.join(folder, 'root')
  // Extracted, without mounting, from the same image file that builds start from.
  await run('mkdir', [root])
  await run('debugfs', ['-R', `rdump / ${root}`, image])
  const store = ['--root', path.join(folder, 'store'), '--runroot', path.join(folder, 'run')]
  const file = path.join(folder, 'Dockerfile')
  const bud: BuildahBud = async (dockerfile, { cache }) => {
    await writeFile(file, dockerfile.replace(/^FROM .*$/m, `FROM ${BASE}`))
    const layers = cache ? '--layers=true' : '--no-cache'
    const args = ['bud', '--isolation', 'chroot', '--pull=false', layers, ...LIMITS, '--tag', 'built', '--file', file]
    await run('buildah', [...store, ...args, folder])
  }
  try {
    await writeFile(path.join(folder, '.dockerignore'), 'store\nrun\n')
    await writeFile(file, 'FROM scratch\nADD root /\n')
    await run('buildah', [...store, 'bud', '--isolation', 'chroot', '--tag', BASE, '--file', file, folder])
    await rm(root, { recursive: true })
    await bud('FROM debian:13\nRUN true\n', { cache: false })
  } catch (error) {
    throw new Skip(`buildah cannot build on this machine: ${errorText(error)}`)
  }
  return bud
}

async function install(report: (text: string) => void): Promise<void> {
  const isInstalled = await run('buildah', ['--version']).then(
    () => true,
    () => false,
  )
  if (isInstalled) return
  report('  installing buildah, the baseline')
  await run('apt-get', INSTALL, { timeout: INSTALL_LIMIT_MS }).catch((error) => {
    throw new Skip(`buildah cannot be installed (apt-get ${INSTALL.join(' ')}): ${errorText(error)}`)
  })
}
