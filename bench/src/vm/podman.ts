/** `podman run` of the same root filesystem: what people use where they do without a kernel of their own. */
import { execFile } from 'node:child_process'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { errorText } from '@warren/kit/text'
import type { Fixture } from '../row.ts'
import { Skip } from '../skip.ts'
import { bareParts } from './bare-parts.ts'

const run = promisify(execFile)

const INSTALL = ['install', '-y', '--no-install-recommends', 'podman', 'runc']
const INSTALL_LIMIT_MS = 5 * 60_000

/** Runs a command in a fresh container and waits for it. */
export type PodmanRun = (...command: string[]) => Promise<void>

export const podman: Fixture<PodmanRun> = async (benchRun) => {
  await install(benchRun.say)
  const { image } = await benchRun.open(bareParts)
  const root = await mkdtemp(path.join(tmpdir(), 'warren-podman-'))
  benchRun.defer(() => rm(root, { recursive: true, force: true }))
  // Out of the very file that sandboxes start from, without mounting it.
  await run('debugfs', ['-R', `rdump / ${root}`, image])
  const args = [
    ...['--runtime', 'runc', '--cgroup-manager=cgroupfs', 'run', '--rm', '--network=none'],
    ...['--ulimit', 'nofile=20000:20000', '--ulimit', 'nproc=4096:4096', '--rootfs', root],
  ]
  const podmanRun: PodmanRun = async (...command) => void (await run('podman', [...args, ...command]))
  await podmanRun('true').catch((error) => {
    throw new Skip(`podman runs no container here: ${errorText(error)}`)
  })
  return podmanRun
}

async function install(say: (text: string) => void): Promise<void> {
  const isThere = await Promise.all([run('podman', ['--version']), run('runc', ['--version'])]).then(
    () => true,
    () => false,
  )
  if (isThere) return
  say('  installing podman and runc, the baseline')
  await run('apt-get', INSTALL, { timeout: INSTALL_LIMIT_MS }).catch((error) => {
    throw new Skip(`podman and runc cannot be installed (apt-get ${INSTALL.join(' ')}): ${errorText(error)}`)
  })
}
