/** `podman run` with the same root filesystem: the usual alternative when a separate kernel is not needed. */
import { execFile } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { errorText } from '@warren/kit/error-text'
import type { Fixture } from '../row.ts'
import { Skip } from '../skip.ts'
import { bareParts } from './bare-parts.ts'

const run = promisify(execFile)

const INSTALL = ['install', '-y', '--no-install-recommends', 'podman', 'runc']
const INSTALL_LIMIT_MS = 5 * 60_000

/** Runs a command in a fresh container and waits for it. */
export type PodmanRun = (...command: string[]) => Promise<void>

export const podman: Fixture<PodmanRun> = async (benchRun) => {
  await install(benchRun.report)
  const { image } = await benchRun.open(bareParts)
  const root = await mkdtemp(path.join(tmpdir(), 'warren-podman-'))
  benchRun.defer(() => rm(root, { recursive: true, force: true }))
  // Extracted, without mounting, from the same image file that sandboxes start from.
  await run('debugfs', ['-R', `rdump / ${root}`, image])
  const args = [
    ...['--runtime', 'runc', '--cgroup-manager=cgroupfs', 'run', '--rm', '--network=none'],
    ...['--ulimit', 'nofile=20000:20000', '--ulimit', 'nproc=4096:4096', '--rootfs', root],
  ]
  const podmanRun: PodmanRun = async (...command) => void (await run('podman', [...args, ...command]))
  await podmanRun('true').catch((error) => {
    throw new Skip(`podman cannot run a container on this machine: ${errorText(error)}`)
  })
  return podmanRun
}

async function install(report: (text: string) => void): Promise<void> {
  const isInstalled = await Promise.all([run('podman', ['--version']), run('runc', ['--version'])]).then(
    () => true,
    () => false,
  )
  if (isInstalled) return
  report('  installing podman and runc, the baseline')
  await run('apt-get', INSTALL, { timeout: INSTALL_LIMIT_MS }).catch((error) => {
    throw new Skip(`podman and runc cannot be installed (apt-get ${INSTALL.join(' ')}): ${errorText(error)}`)
  })
}
