/** Creates OCI images for tests without skopeo and umoci, so that tests check those tools independently. */
import { createHash } from 'node:crypto'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { gzipSync } from 'node:zlib'
import { runCommandOrThrow } from '../run-command.ts'

export type Layout = { folder: string; blobs: string[] }

/** Creates a tarball of a directory, with extended attributes. */
export async function tarFolder(folder: string, file: string): Promise<string> {
  await runCommandOrThrow('tar', [
    '--create',
    '--xattrs',
    '--xattrs-include=*',
    '--file',
    file,
    '--directory',
    folder,
    '.',
  ])
  return file
}

/** Writes an OCI layout with the tag `test`. Returns the files of its layers in order. */
export async function writeLayout(folder: string, layers: string[], architecture = 'amd64'): Promise<Layout> {
  await mkdir(path.join(folder, 'blobs/sha256'), { recursive: true })
  const put = async (data: Buffer) => {
    const hex = sha256(data)
    await writeFile(path.join(folder, 'blobs/sha256', hex), data)
    return { digest: `sha256:${hex}`, size: data.length }
  }
  const tars = await Promise.all(layers.map((file) => readFile(file)))
  const packed = await Promise.all(tars.map((tar) => put(gzipSync(tar))))
  const config = await put(
    json({
      architecture,
      os: 'linux',
      config: {},
      rootfs: { type: 'layers', diff_ids: tars.map((tar) => `sha256:${sha256(tar)}`) },
    }),
  )
  const manifest = await put(
    json({
      schemaVersion: 2,
      mediaType: 'application/vnd.oci.image.manifest.v1+json',
      config: { mediaType: 'application/vnd.oci.image.config.v1+json', ...config },
      layers: packed.map((blob) => ({ mediaType: 'application/vnd.oci.image.layer.v1.tar+gzip', ...blob })),
    }),
  )
  const mediaType = 'application/vnd.oci.image.manifest.v1+json'
  const annotations = { 'org.opencontainers.image.ref.name': 'test' }
  await writeFile(path.join(folder, 'oci-layout'), json({ imageLayoutVersion: '1.0.0' }))
  await writeFile(
    path.join(folder, 'index.json'),
    json({ schemaVersion: 2, manifests: [{ mediaType, ...manifest, annotations }] }),
  )
  return {
    folder,
    blobs: packed.map(({ digest }) => path.join(folder, 'blobs/sha256', digest.slice('sha256:'.length))),
  }
}

const json = (value: unknown): Buffer => Buffer.from(JSON.stringify(value))
const sha256 = (data: Buffer): string => createHash('sha256').update(data).digest('hex')
