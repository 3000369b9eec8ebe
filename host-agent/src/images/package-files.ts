/**
 * The .deb files that an image is made of, with the SHA-256 of each. apt compares what it downloads with the signed lists of the
 * archive; this does so once more with the files that were installed, and leaves a record: the content of a package cannot be
 * told from its version alone.
 */
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { type Package, parseDpkgStatus, readStanzas } from './packages.ts'

/** `sha256` in hexadecimal. */
export type PackageFile = Pick<Package, 'name' | 'version' | 'architecture'> & { sha256: string }

/** The output of sha256sum, and the stanzas of the lists of apt. */
type Sources = { sums: string; available: string }
const FILES = { sums: 'package-sums', available: 'package-lists' } as const

/** Options of mmdebstrap that write both into the folder, after the installation and before the files are removed. */
export function recordingOptions(folder: string): string[] {
  const file = (name: string) => `'${path.join(folder, name).replaceAll("'", `'\\''`)}'`
  const script = [
    'cd "$1/var/cache/apt/archives"',
    `sha256sum -- *.deb >${file(FILES.sums)}`,
    `APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-cache dumpavail >${file(FILES.available)}`,
  ]
  return ['--skip=essential/unlink', `--customize-hook=${script.join(' && ')}`]
}

/** Throws if a file is not that of the archive, or if an installed package has none. */
export async function readPackageFiles(folder: string, root: string): Promise<PackageFile[]> {
  const read = (name: string) => readFile(path.join(folder, name), 'utf8')
  const [sums, available, status] = await Promise.all([
    read(FILES.sums),
    read(FILES.available),
    readFile(path.join(root, 'var/lib/dpkg/status'), 'utf8'),
  ])
  const files = checkPackageFiles({ sums, available })
  const recorded = new Set(files.map(keyOf))
  const missing = parseDpkgStatus(status).filter((one) => !recorded.has(keyOf(one)))
  if (missing.length > 0) throw new Error(`no .deb file was recorded for ${missing.map(({ name }) => name).join(', ')}`)
  return files
}

/** Throws if the SHA-256 of a file is not the one in the lists. */
export function checkPackageFiles({ sums, available }: Sources): PackageFile[] {
  const expected = new Map<string, string>(
    readStanzas(available, /^([A-Za-z0-9-]+): (.*)$/).map((fields) => {
      const read = (name: string) => fields.get(name) ?? ''
      return [`${read('Package')} ${read('Version')} ${read('Architecture')}`, read('SHA256')] as const
    }),
  )
  return parseSums(sums).map((file) => {
    const sha256 = expected.get(keyOf(file))
    if (sha256 === undefined) throw new Error(`${describe(file)} is not in the lists of its archive`)
    if (sha256 !== file.sha256) {
      throw new Error(`the SHA-256 of ${describe(file)} is ${file.sha256}, and ${sha256} in the lists of its archive`)
    }
    return file
  })
}

/** apt names a file by package, version and architecture, with escaped colons. */
function parseSums(sums: string): PackageFile[] {
  const lines = sums.split('\n').filter((line) => line !== '')
  return lines.map((line) => {
    const match = /^([0-9a-f]{64}) [ *]([^_/]+)_([^_/]+)_([^_/]+)\.deb$/.exec(line)
    if (!match) throw new Error(`failed to parse the SHA-256 of a package from: ${line.slice(0, 200)}`)
    const [, sha256, name, version, architecture] = match as unknown as [string, string, string, string, string] // All groups are required.
    return { name, version: decodeURIComponent(version), architecture, sha256 }
  })
}

const keyOf = ({ name, version, architecture }: Omit<PackageFile, 'sha256'>): string =>
  `${name} ${version} ${architecture}`
const describe = ({ name, version }: PackageFile): string => `${name} ${version}`
