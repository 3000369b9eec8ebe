/**
 * The packages in the root file system of an image, as its own package manager recorded them: dpkg or apk. They are read from
 * the file itself, so they are known for images of any age and origin. Programs that were installed otherwise are not listed.
 */
import { readFromImage } from './read-from-image.ts'
import { requireTools } from './tools.ts'

export type Package = { manager: 'deb' | 'apk'; name: string; version: string; architecture: string }
/** `id` and `version` of /etc/os-release, such as `debian` and `13`. */
export type Distribution = { id: string; version: string }

/** `cacheDir`: see readFromImage. */
export async function readPackages(
  cacheDir: string,
  image: string,
): Promise<{ distribution: Distribution; packages: Package[] }> {
  requireTools('debugfs')
  const [dpkg, apk, ...releases] = await Promise.all(
    ['/var/lib/dpkg/status', '/lib/apk/db/installed', '/etc/os-release', '/usr/lib/os-release'].map((file) =>
      readFromImage(cacheDir, image, file),
    ),
  )
  const packages = [...parseDpkgStatus(dpkg ?? ''), ...parseApkInstalled(apk ?? '')]
  return {
    distribution: parseOsRelease(releases.find((release) => release !== '') ?? ''),
    packages: packages.sort(
      (one, other) => compare(one.name, other.name) || compare(one.architecture, other.architecture),
    ),
  }
}

/** Packages that are removed but not purged are left out. */
export function parseDpkgStatus(status: string): Package[] {
  return readStanzas(status, /^([A-Za-z-]+): (.*)$/).flatMap((fields) => {
    const [name, version, architecture] = ['Package', 'Version', 'Architecture'].map((field) => fields.get(field))
    if (!fields.get('Status')?.endsWith(' installed') || !name || !version || !architecture) return []
    return [{ manager: 'deb' as const, name, version, architecture }]
  })
}

export function parseApkInstalled(installed: string): Package[] {
  return readStanzas(installed, /^([A-Z]):(.*)$/).flatMap((fields) => {
    const [name, version, architecture] = ['P', 'V', 'A'].map((field) => fields.get(field))
    return name && version && architecture ? [{ manager: 'apk' as const, name, version, architecture }] : []
  })
}

export function parseOsRelease(release: string): Distribution {
  const value = (name: string) => new RegExp(`^${name}=["']?([^"'\\n]*)`, 'm').exec(release)?.[1] ?? ''
  return { id: value('ID') || 'linux', version: value('VERSION_ID') }
}

/** Stanzas are separated by empty lines. Lines that continue a field are skipped: no field that is read has any. */
export function readStanzas(text: string, field: RegExp): Map<string, string>[] {
  return text.split(/\n\n+/).map((stanza) => {
    const fields = stanza.split('\n').flatMap((line) => {
      const match = field.exec(line)
      return match ? [[match[1]!, match[2]!.trim()] as const] : [] // Both groups are part of every match.
    })
    return new Map(fields)
  })
}

const compare = (one: string, other: string): number => (one < other ? -1 : one > other ? 1 : 0)
