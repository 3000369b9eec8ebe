/**
 * What an image consists of, and what runs it on this machine: enough to compare two machines. Everything has a version and,
 * where it is one file or folder, a digest of its content.
 */
import { access } from 'node:fs/promises'
import { findBinaries } from '@warren/kit/postgres/binaries'
import { VERSION } from '@warren/kit/version'
import { runCommandOrThrow } from '../run-command.ts'
import { hashFile } from './hash.ts'
import type { Image } from './image.ts'
import type { Kernel } from './kernel.ts'
import type { ImageCache } from './layout.ts'
import { type Distribution, type Package, readPackages } from './packages.ts'
import { TOOL_ENV } from './tools.ts'

/** `digest` is absent for what is not a single file. */
export type Component = { name: string; version: string; digest?: string }

/** `sha256` of its package file, in hexadecimal, if the image was built here. */
export type InspectedPackage = Package & { sha256?: string }

export type Inspection = {
  name: string
  digest: string
  source: string
  created_at: string
  distribution: Distribution
  packages: InspectedPackage[]
  /** What is not part of the image: the guest's kernel, and the programs of this machine. */
  machine: Component[]
}

/** `kernel` is undefined as long as none is built. */
export async function inspectImage(cache: ImageCache, image: Image, kernel: Kernel | undefined): Promise<Inspection> {
  const { distribution, packages } = await readPackages(cache.cacheDir, image.path)
  const sums = new Map(image.manifest.packages?.map((file) => [keyOf(file), file.sha256]))
  return {
    name: image.name,
    digest: image.digest,
    source: image.manifest.source,
    created_at: image.manifest.created_at,
    distribution,
    packages: packages.map((one) => {
      const sha256 = sums.get(keyOf(one))
      return sha256 === undefined ? one : { ...one, sha256 }
    }),
    machine: [
      { name: 'warren', version: VERSION },
      ...(kernel ? describeKernel(kernel) : []),
      { name: 'node', version: process.versions.node, digest: await hashFile(process.execPath) },
      ...(await findPostgres()),
      ...(await findQemu()),
    ],
  }
}

/** Its own digest is that of the kernel with the modules that are used, not of the package. */
function describeKernel({ version, digest, package: file }: Kernel): Component[] {
  const kernel = { name: 'guest-kernel', version, digest }
  return file ? [kernel, { name: file.name, version: file.version, digest: `sha256:${file.sha256}` }] : [kernel]
}

const keyOf = ({ name, version, architecture }: Pick<Package, 'name' | 'version' | 'architecture'>): string =>
  `${name} ${version} ${architecture}`

/** None where the operator uses another server and the package is not installed. */
async function findPostgres(): Promise<Component[]> {
  try {
    const { postgres } = await findBinaries()
    await access(postgres)
    const { stdout } = await runCommandOrThrow(postgres, ['--version'])
    return [{ name: 'postgresql', version: firstVersion(stdout), digest: await hashFile(postgres) }]
  } catch {
    return [] // Not installed; the doctor checks for it.
  }
}

async function findQemu(): Promise<Component[]> {
  try {
    const { stdout } = await runCommandOrThrow('qemu-system-x86_64', ['--version'], { env: TOOL_ENV })
    return [{ name: 'qemu', version: firstVersion(stdout) }]
  } catch {
    return [] // Not installed; the doctor checks for it.
  }
}

const firstVersion = (text: string): string => /\d+(\.\d+)+/.exec(text)?.[0] ?? 'unknown'
