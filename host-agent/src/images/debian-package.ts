/** Fetches a package of a Debian suite and unpacks it, without installing it or touching the machine's own apt. */
import { mkdir, readdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { runCommandOrThrow } from '../run-command.ts'
import type { Build } from './build.ts'
import { runInBuild } from './command.ts'
import { type Mirror, renderSources } from './mirror.ts'

export type Apt = { env: NodeJS.ProcessEnv; downloads: string }

/** An apt of our own under the build's folder, with the lists of that suite. Signatures are checked by apt. */
export async function openApt(build: Build, mirror: Mirror, suite: string): Promise<Apt> {
  const home = path.join(build.folder, 'apt')
  const downloads = path.join(home, 'downloads')
  for (const folder of ['lists/partial', 'cache/archives/partial', 'downloads']) {
    await mkdir(path.join(home, folder), { recursive: true })
  }
  const signed = mirror.keyring ? `deb [signed-by=${mirror.keyring}]` : 'deb'
  const sources = renderSources(mirror, suite).map((line) => line.replace(/^deb/, signed))
  await writeFile(path.join(home, 'sources.list'), `${sources.join('\n')}\n`)
  await writeFile(path.join(home, 'apt.conf'), renderConfig(home, mirror))
  const env = { ...mirror.env, APT_CONFIG: path.join(home, 'apt.conf') }
  await runInBuild(build, 'apt-get', ['update', '--error-on=any'], { env, what: `reading the packages of ${suite}` })
  return { env, downloads }
}

/** What a package depends on, by name. */
export async function listDependencies(apt: Apt, name: string): Promise<string[]> {
  const { stdout } = await runCommandOrThrow('apt-cache', ['depends', name], { env: apt.env })
  return [...stdout.matchAll(/^\s+Depends: (\S+)$/gm)].map((match) => match[1]!) // the group is not optional
}

/** Gives the folder it was unpacked to. */
export async function unpackPackage(build: Build, apt: Apt, name: string): Promise<string> {
  const what = `downloading ${name}`
  await runInBuild(build, 'env', ['-C', apt.downloads, 'apt-get', 'download', name], { env: apt.env, what })
  const file = (await readdir(apt.downloads)).find((entry) => entry.startsWith(`${name}_`))
  if (file === undefined) throw new Error(`apt-get downloaded no file of ${name}`)
  const folder = path.join(build.folder, name)
  await runInBuild(build, 'dpkg-deb', ['-x', path.join(apt.downloads, file), folder], { what: `unpacking ${name}` })
  return folder
}

function renderConfig(home: string, mirror: Mirror): string {
  return [
    'APT::Architecture "amd64";',
    'APT::Architectures { "amd64"; };',
    // The files lie in a folder that apt's own user may not enter.
    'APT::Sandbox::User "root";',
    'Acquire::Languages "none";',
    `Dir::State "${home}";`,
    `Dir::State::Lists "${home}/lists";`,
    'Dir::State::status "/dev/null";',
    `Dir::Cache "${home}/cache";`,
    `Dir::Etc::SourceList "${home}/sources.list";`,
    'Dir::Etc::SourceParts "/dev/null";',
    // The machine's own settings may run programs after an update; what of them matters is in the mirror's options.
    'Dir::Etc::Parts "/dev/null";',
    'Dir::Etc::Main "/dev/null";',
    ...mirror.aptOptions,
    '',
  ].join('\n')
}
