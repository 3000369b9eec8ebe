/** Runs a command of a build inside the root file system that is being built, with this machine's network. */
import { copyFile, mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import type { Build } from './build.ts'
import { runInBuild } from './run-in-build.ts'
import { TOOL_ENV } from './tools.ts'

/** For programs that look at /proc/self. The mount ends with the namespace of the command. */
const WITH_PROC = 'mount -t proc proc "$1/proc" && exec chroot "$@"'
const PATH_IN_ROOT = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin'
/** Exists only during the command. */
const SHARED = 'tmp/of-this-machine'
const HOST_CERTIFICATES = '/etc/ssl/certs/ca-certificates.crt'

export type RootCommand = { what: string; env?: NodeJS.ProcessEnv }

export async function runInRoot(
  build: Build,
  root: string,
  command: readonly string[],
  { what, env }: RootCommand,
): Promise<void> {
  const home = { PATH: PATH_IN_ROOT, HOME: '/root', LC_ALL: 'C.UTF-8' }
  await runInBuild(build, 'sh', ['-c', WITH_PROC, 'sh', root, ...command], { what, env: { ...home, ...env } })
}

/**
 * Like runInRoot, for a pip that downloads: with the resolver, the proxy, the certificate authorities and the pip settings
 * of this machine, so that pip reaches its index wherever the machine does.
 */
export async function runPipInRoot(build: Build, root: string, args: readonly string[], what: string): Promise<void> {
  const shared = path.join(root, SHARED)
  const resolver = path.join(root, 'etc/resolv.conf')
  const before = await readFile(resolver)
  await mkdir(shared)
  try {
    await writeFile(resolver, await readFile('/etc/resolv.conf'))
    const env = await shareSettings(root)
    await runInRoot(build, root, ['pip3', 'install', '--no-cache-dir', ...args], { what, env })
  } finally {
    await writeFile(resolver, before)
    await rm(shared, { recursive: true, force: true })
  }
}

async function shareSettings(root: string): Promise<NodeJS.ProcessEnv> {
  const env = Object.fromEntries(Object.entries(TOOL_ENV).filter(([name]) => /^(PIP_|.*_proxy$)/i.test(name)))
  const files = { PIP_CERT: HOST_CERTIFICATES, PIP_CONFIG_FILE: '/etc/pip.conf' }
  for (const [name, usual] of Object.entries(files)) {
    const file = env[name] || usual
    const copy = path.join(SHARED, path.basename(file))
    const isCopied = await copyFile(file, path.join(root, copy)).then(
      () => true,
      () => false, // This machine has no such file.
    )
    if (isCopied) env[name] = `/${copy}`
    else delete env[name]
  }
  return env
}
