/** Finds the Debian mirror and proxy to use: from the settings of the operator, or from this machine's apt. */
import { existsSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import path from 'node:path'
import { readConfig, text } from '@warren/kit/config'
import { runCommand } from '../run-command.ts'
import { type AptSource, parseAptSources } from './apt-sources.ts'
import { TOOL_ENV } from './tools.ts'

export type Mirror = {
  archive: string
  /** Absent if the machine has no source of security updates. */
  security?: string
  keyring?: string
  /** Lines for apt.conf. */
  aptOptions: string[]
  /** Environment for programs that download from the mirror. */
  env: NodeJS.ProcessEnv
}

export const MIRROR_SETTINGS = {
  archive: text('WARREN_DEBIAN_MIRROR', {
    default: '',
    defaultText: 'the mirror in /etc/apt',
    description: 'URL of the Debian mirror from which images and the guest kernel are built.',
  }),
  security: text('WARREN_DEBIAN_SECURITY_MIRROR', {
    default: '',
    defaultText: 'the mirror in /etc/apt, or none if WARREN_DEBIAN_MIRROR is set',
    description: 'URL of the mirror of Debian security updates.',
  }),
}

const KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg'

export async function findMirror(env: NodeJS.ProcessEnv = process.env): Promise<Mirror> {
  const found = chooseMirror(await readSources('/etc/apt'), env)
  if (!found) {
    throw new Error('apt on this machine has no Debian mirror; set WARREN_DEBIAN_MIRROR to the URL of one')
  }
  const settings = await readSettings()
  return {
    archive: await resolveMirrorFile(found.archive),
    security: found.security && (await resolveMirrorFile(found.security)),
    keyring: [found.signedBy, KEYRING].find((file) => file !== undefined && existsSync(file)),
    aptOptions: settings.options,
    env: { ...settings.proxies, ...TOOL_ENV },
  }
}

/** The archive is the source of this machine's release. Its URL ends in `debian`, as on every Debian mirror. */
export function chooseMirror(
  sources: AptSource[],
  env: NodeJS.ProcessEnv,
): { archive: string; security?: string; signedBy?: string } | undefined {
  const find = (matches: (uri: string, suites: string[]) => boolean) =>
    sources
      .flatMap(({ uris, suites, signedBy }) =>
        uris.map((uri) => ({ uri: withoutTrailingSlash(uri), suites, signedBy })),
      )
      .find(({ uri, suites }) => !uri.startsWith('cdrom:') && matches(uri, suites))
  const archive = find((uri, suites) => /\/debian(\.list)?$/.test(uri) && suites.some((suite) => !suite.includes('-')))
  const security = find((uri, suites) => /\/debian/.test(uri) && suites.some((suite) => suite.endsWith('-security')))
  const settings = readConfig(MIRROR_SETTINGS, env)
  if (settings.archive !== '') {
    // The security mirror of this machine is not used: an operator who sets one mirror may not be able to reach it.
    return {
      archive: withoutTrailingSlash(settings.archive),
      security: withoutTrailingSlash(settings.security) || undefined,
    }
  }
  if (!archive) return undefined
  return { archive: archive.uri, security: security?.uri, signedBy: archive.signedBy }
}

const withoutTrailingSlash = (uri: string): string => uri.replace(/\/+$/, '')

/** Lines of sources.list for the suite, with the component `main` only. */
export function renderSources(mirror: Pick<Mirror, 'archive' | 'security'>, suite: string): string[] {
  const lines = [`deb ${mirror.archive} ${suite} main`, `deb ${mirror.archive} ${suite}-updates main`]
  return mirror.security ? [...lines, `deb ${mirror.security} ${suite}-security main`] : lines
}

async function readSources(folder: string): Promise<AptSource[]> {
  const parts = path.join(folder, 'sources.list.d')
  const names = existsSync(parts) ? (await readdir(parts)).sort() : []
  const files = [path.join(folder, 'sources.list'), ...names.map((name) => path.join(parts, name))]
  const known = files.filter((file) => /\.(list|sources)$/.test(file) && existsSync(file))
  return (await Promise.all(known.map(async (file) => parseAptSources(file, await readFile(file, 'utf8'))))).flat()
}

/** Debian's cloud images refer to a file that lists mirrors: `mirror+file:/etc/apt/mirrors/debian.list`. */
async function resolveMirrorFile(uri: string): Promise<string> {
  const file = /^mirror\+file:(?:\/\/)?(\/.*)$/.exec(uri)?.[1]
  if (file === undefined) return uri
  const first = (await readFile(file, 'utf8')).split('\n').find((line) => /^[a-z+]+:\//.test(line.trim()))
  if (first === undefined) throw new Error(`${file} lists no mirror`)
  return withoutTrailingSlash(first.trim().split(/\s/)[0]!) // A line with a URL has a first word.
}

/** The settings of this machine's apt that are needed to reach the mirror and to accept its release files. */
async function readSettings(): Promise<{ options: string[]; proxies: NodeJS.ProcessEnv }> {
  const names = ['Acquire::http::Proxy', 'Acquire::https::Proxy', 'Acquire::Check-Valid-Until']
  const { stdout } = await runCommand('apt-config', ['dump', '--no-empty', '--format', '%f=%v%n', ...names], {
    env: TOOL_ENV,
  })
  const values = new Map(stdout.split('\n').map((line) => [line.split('=')[0]!, line.slice(line.indexOf('=') + 1)]))
  const [http, https, checkDates] = names.map((name) => values.get(name))
  return {
    options: checkDates ? [`Acquire::Check-Valid-Until "${checkDates}";`] : [],
    proxies: { ...(http && { http_proxy: http }), ...(https && { https_proxy: https }) },
  }
}
