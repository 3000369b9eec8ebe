/** Downloads and unpacks a package of a Debian suite, without installing it and without using the machine's apt state. */
import { mkdir, readdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { runCommandOrThrow } from '../run-command.ts'
import type { Build } from './build.ts'
import { hashFile } from './hash.ts'
import { type Mirror, renderSources } from './mirror.ts'
import { checkPackageFiles, type PackageFile } from './package-files.ts'
import { runInBuild } from './run-in-build.ts'

export type Apt = { env: NodeJS.ProcessEnv; downloads: string }

/** Sets up a private apt in the folder of the build, with the package lists of the suite. apt checks signatures. */
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

/** The names of the packages that a package depends on. */
export async function listDependencies(apt: Apt, name: string): Promise<string[]> {
  const { stdout } = await runCommandOrThrow('apt-cache', ['depends', name], { env: apt.env })
  return [...stdout.matchAll(/^\s+Depends: (\S+)$/gm)].map((match) => match[1]!) // The group is required.
}

/** The names of all packages that begin so. */
export async function listPackages(apt: Apt, prefix: string): Promise<string[]> {
  const { stdout } = await runCommandOrThrow('apt-cache', ['pkgnames', prefix], { env: apt.env })
  return stdout.split('\n').filter(Boolean)
}

/** Returns the folder with the unpacked files, and the package file, whose SHA-256 is the one in the lists of the suite. */
export async function unpackPackage(
  build: Build,
  apt: Apt,
  name: string,
): Promise<{ folder: string; package: PackageFile }> {
  const what = `downloading ${name}`
  await runInBuild(build, 'env', ['-C', apt.downloads, 'apt-get', 'download', name], { env: apt.env, what })
  const file = (await readdir(apt.downloads)).find((entry) => entry.startsWith(`${name}_`))
  if (file === undefined) throw new Error(`apt-get download ${name} left no file`)
  const downloaded = path.join(apt.downloads, file)
  const { stdout: available } = await runCommandOrThrow('apt-cache', ['show', name], { env: apt.env })
  const sums = `${(await hashFile(downloaded, build.signal)).replace('sha256:', '')}  ${file}\n`
  const [checked] = checkPackageFiles({ sums, available })
  const folder = path.join(build.folder, name)
  await runInBuild(build, 'dpkg-deb', ['-x', downloaded, folder], { what: `unpacking ${name}` })
  return { folder, package: checked! } // One line of sums is one file.
}

function renderConfig(home: string, mirror: Mirror): string {
  return [
    'APT::Architecture "amd64";',
    'APT::Architectures { "amd64"; };',
    // The user _apt has no access to this folder.
    'APT::Sandbox::User "root";',
    'Acquire::Languages "none";',
    `Dir::State "${home}";`,
    `Dir::State::Lists "${home}/lists";`,
    'Dir::State::status "/dev/null";',
    `Dir::Cache "${home}/cache";`,
    `Dir::Etc::SourceList "${home}/sources.list";`,
    'Dir::Etc::SourceParts "/dev/null";',
    // Not the machine's settings, which may run programs after an update. Those that matter are in mirror.aptOptions.
    'Dir::Etc::Parts "/dev/null";',
    'Dir::Etc::Main "/dev/null";',
    ...mirror.aptOptions,
    '',
  ].join('\n')
}
