/** Downloads a package from the npm registry, pinned by version and checked against a fixed digest. */
import { createHash } from 'node:crypto'
import { mkdir, readdir, readFile } from 'node:fs/promises'
import path from 'node:path'
import type { Build } from './build.ts'
import { runInBuild } from './run-in-build.ts'

export type NpmPackage = { name: string; version: string; integrity: string }

/** Unpacks the package to `target`. npm downloads it, so the user's settings for registry and proxy apply. */
export async function unpackNpmPackage(build: Build, wanted: NpmPackage, target: string): Promise<void> {
  const spec = `${wanted.name}@${wanted.version}`
  const downloads = path.join(build.folder, `npm-${wanted.name.replace('/', '-')}`)
  await mkdir(downloads)
  const args = ['pack', spec, '--ignore-scripts', '--loglevel=error', '--pack-destination', downloads]
  await runInBuild(build, 'npm', args, { what: `downloading ${spec}` })
  const [file] = await readdir(downloads)
  if (file === undefined) throw new Error(`npm pack ${spec} left no file`)
  await checkIntegrity(path.join(downloads, file), wanted.integrity)

  await mkdir(target, { recursive: true })
  const unpack = ['--extract', '--no-same-owner', '--strip-components=1']
  await runInBuild(build, 'tar', [...unpack, '--file', path.join(downloads, file), '--directory', target], {
    what: `unpacking ${spec}`,
  })
}

export async function checkIntegrity(file: string, integrity: string): Promise<void> {
  const [algorithm, expected] = integrity.split(/-(.*)/)
  const found = createHash(algorithm!)
    .update(await readFile(file))
    .digest('base64') // split returns at least one part.
  if (found !== expected)
    throw new Error(`${path.basename(file)} has the digest ${algorithm}-${found} instead of ${integrity}`)
}
