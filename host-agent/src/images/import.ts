/**
 * Imports an image from a registry or a file. umoci applies the layers in order, with their whiteouts; umoci and skopeo
 * check every digest. Owners, modes, links and capabilities are preserved. Nothing is added, because the guest agent is
 * in the initramfs.
 */
import { existsSync } from 'node:fs'
import { mkdir, readdir, readFile, symlink } from 'node:fs/promises'
import { homedir } from 'node:os'
import path from 'node:path'
import { runCommandOrThrow } from '../run-command.ts'
import { type Build, type BuildOptions, buildOnce } from './build.ts'
import { type Image, storeRoot } from './image.ts'
import { checkImageName, type ImageCache } from './layout.ts'
import { runInBuild } from './run-in-build.ts'
import { findSource, isOnLoopback, type Source } from './source.ts'
import { requireRoot, requireTools, TOOL_ENV } from './tools.ts'

export type ImportRequest = {
  /** A reference in a registry, an OCI layout, a Docker or OCI archive, or a tarball of a root file system. */
  source: string
  name: string
  /** Imports from a registry although no policy says which signatures are needed. */
  insecurePolicy?: boolean | undefined
}

/** Replaces an image of the same name. Existing sandboxes keep the image they started from. */
export async function importImage(
  cache: ImageCache,
  { source, name, insecurePolicy = false }: ImportRequest,
  options: BuildOptions = {},
): Promise<Image> {
  checkImageName(name)
  requireRoot('importing an image')
  requireTools('tar', 'mke2fs', 'e2fsck', 'setpriv', 'unshare')
  const found = await findSource(source)
  if (found.type !== 'tar') requireTools('skopeo', 'umoci')
  if (found.type === 'reference') checkSignaturePolicy(found.reference, insecurePolicy)
  const findNothing = async () => undefined // Always import again.
  return buildOnce(cache, name, options, findNothing, async (build) => {
    const startedAt = Date.now()
    const root = path.join(build.folder, 'root')
    const digest = await unpackSource(build, found, root)
    if ((await readdir(root)).length === 0) throw new Error(`${source} contains no files`)
    return storeRoot(cache, build, { name, root, source: digest ? `${source} (${digest})` : source, startedAt })
  })
}

/**
 * By a tag, a registry decides what is imported; only signatures can tell whether it is the right image. A digest in the
 * reference says so itself. A registry on this machine is a test or a tunnel.
 */
export function checkSignaturePolicy(
  reference: string,
  insecurePolicy: boolean,
  hasPolicy = hasSignaturePolicy(),
): void {
  const isPinned = /@sha256:[0-9a-f]{64}$/.test(reference)
  if (insecurePolicy || hasPolicy || isPinned || !reference.startsWith('docker://') || isOnLoopback(reference)) return
  throw new Error(
    `this machine has no signature policy (/etc/containers/policy.json), so the origin of ${reference} cannot be checked; ` +
      'name the image by its digest (…@sha256:…), or use --insecure-policy to accept what the registry sends',
  )
}

/** Returns the digest of the image's manifest, if it has one. */
async function unpackSource(build: Build, source: Source, root: string): Promise<string | undefined> {
  if (source.type === 'reference') return unpackOci(build, source.reference, root)
  // The link has no colon in its name, which skopeo would take for the start of a tag.
  const link = path.join(build.folder, 'source')
  await symlink(source.file, link)
  if (source.type !== 'tar') return unpackOci(build, `${source.type}:${link}`, root)
  await unpackTar(build, link, root)
  return undefined
}

async function unpackOci(build: Build, reference: string, root: string): Promise<string> {
  const layout = path.join(build.folder, 'layout')
  const image = `${layout}:image`
  await runInBuild(build, 'skopeo', skopeoArgs(reference, `oci:${image}`), { what: 'fetching the image' })
  await checkArchitecture(`oci:${image}`, build.signal)
  await runInBuild(build, 'umoci', ['raw', 'unpack', '--image', image, root], { what: 'unpacking its layers' })
  const index: { manifests: { digest: string }[] } = JSON.parse(await readFile(path.join(layout, 'index.json'), 'utf8'))
  return index.manifests[0]?.digest ?? 'no digest'
}

export function skopeoArgs(from: string, to: string, hasPolicy = hasSignaturePolicy()): string[] {
  return [
    // Without a signature policy of the operator, only digests are checked (checkSignaturePolicy).
    ...(hasPolicy ? [] : ['--insecure-policy']),
    ...['--override-os', 'linux', '--override-arch', 'amd64', 'copy'],
    ...(isOnLoopback(from) ? ['--src-tls-verify=false'] : []),
    ...[from, to],
  ]
}

const hasSignaturePolicy = (): boolean =>
  ['/etc/containers/policy.json', path.join(homedir(), '.config/containers/policy.json')].some((file) =>
    existsSync(file),
  )

/** skopeo chooses the architecture only if the image has several, so the result is checked. */
async function checkArchitecture(reference: string, signal: AbortSignal | undefined): Promise<void> {
  const { stdout } = await runCommandOrThrow('skopeo', ['inspect', '--config', reference], { env: TOOL_ENV, signal })
  const { architecture, os }: { architecture?: string; os?: string } = JSON.parse(stdout)
  if (architecture !== 'amd64' || os !== 'linux') {
    throw new Error(`the image is for ${os} on ${architecture}; sandboxes need linux on amd64`)
  }
}

async function unpackTar(build: Build, file: string, root: string): Promise<void> {
  await mkdir(root, { mode: 0o755 })
  const preserve = ['--numeric-owner', '--same-owner', '--preserve-permissions', '--xattrs', '--xattrs-include=*']
  const args = ['--extract', ...preserve, '--file', file, '--directory', root]
  await runInBuild(build, 'tar', args, { what: 'unpacking the tarball' })
}
