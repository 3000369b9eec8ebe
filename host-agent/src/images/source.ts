/** Determines what kind of source the user named for an import. */
import { existsSync, statSync } from 'node:fs'
import { homedir } from 'node:os'
import path from 'node:path'
import { runCommand } from '../run-command.ts'
import { TOOL_ENV } from './tools.ts'

export type Source =
  /** A reference in skopeo's syntax: a registry, or another transport that the user named. */
  | { type: 'reference'; reference: string }
  /** An OCI layout, or a Docker or OCI archive. */
  | { type: 'oci' | 'oci-archive' | 'docker-archive'; file: string }
  /** A tarball of a root file system, in any compression that tar supports. */
  | { type: 'tar'; file: string }

const TRANSPORTS = /^(docker:\/\/|oci:|oci-archive:|docker-archive:)/
/** host:port/name:tag@digest, in which only the name is required. */
const REFERENCE = /^[a-z0-9]([\w.-]*(:\d+)?)(\/[\w.-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?$/i
const ARCHIVE_TIMEOUT_MS = 600_000

export async function findSource(text: string): Promise<Source> {
  if (TRANSPORTS.test(text)) return { type: 'reference', reference: text }
  const file = path.resolve(text.replace(/^~(?=\/)/, homedir()))
  if (existsSync(file)) return statSync(file).isDirectory() ? getLayout(file) : getArchive(file)
  if (/^[./~]/.test(text)) throw new Error(`there is no file ${text}`)
  if (REFERENCE.test(text)) return { type: 'reference', reference: `docker://${text}` }
  throw new Error(`${JSON.stringify(text)} is neither a file nor an image reference such as registry.example/name:tag`)
}

/** A registry on this machine is a test or a tunnel and needs no certificate. */
export const isOnLoopback = (reference: string): boolean =>
  /^docker:\/\/(localhost|127(\.\d+){3}|\[::1\])(:\d+)?\//.test(reference)

function getLayout(folder: string): Source {
  if (existsSync(path.join(folder, 'oci-layout'))) return { type: 'oci', file: folder }
  throw new Error(`${folder} is not an OCI layout: it has no file oci-layout`)
}

async function getArchive(file: string): Promise<Source> {
  if ((await readMember(file, 'oci-layout'))?.includes('imageLayoutVersion')) {
    return { type: 'oci-archive', file }
  }
  // A root file system may have a file of that name too, but not with this content.
  if (/^\s*\[.*"Layers"\s*:/s.test((await readMember(file, 'manifest.json')) ?? '')) {
    return { type: 'docker-archive', file }
  }
  return { type: 'tar', file }
}

async function readMember(file: string, name: string): Promise<string | undefined> {
  const args = ['--extract', '--to-stdout', '--occurrence=1', '--file', file, name]
  const { exitCode, stdout } = await runCommand('tar', args, { env: TOOL_ENV, timeoutMs: ARCHIVE_TIMEOUT_MS })
  return exitCode === 0 ? stdout : undefined
}
