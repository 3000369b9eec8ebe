/** What an operator may name as the source of an image, told apart. */
import { existsSync, statSync } from 'node:fs'
import { homedir } from 'node:os'
import path from 'node:path'
import { runCommand } from '../run-command.ts'
import { TOOL_ENV } from './tools.ts'

export type Source =
  /** In skopeo's words: a registry, or what else the operator named with its kind. */
  | { type: 'reference'; reference: string }
  /** A layout of OCI, or an archive of docker or OCI. */
  | { type: 'oci' | 'oci-archive' | 'docker-archive'; file: string }
  /** A root filesystem, in any compression tar knows. */
  | { type: 'tar'; file: string }

const TRANSPORTS = /^(docker:\/\/|oci:|oci-archive:|docker-archive:)/
/** host:port/name:tag@digest, all but one name optional. */
const REFERENCE = /^[a-z0-9]([\w.-]*(:\d+)?)(\/[\w.-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?$/i
const ARCHIVE_TIMEOUT_MS = 600_000

export async function findSource(text: string): Promise<Source> {
  if (TRANSPORTS.test(text)) return { type: 'reference', reference: text }
  const file = path.resolve(text.replace(/^~(?=\/)/, homedir()))
  if (existsSync(file)) return statSync(file).isDirectory() ? layoutIn(file) : archiveIn(file)
  if (/^[./~]/.test(text)) throw new Error(`there is no file ${text}`)
  if (REFERENCE.test(text)) return { type: 'reference', reference: `docker://${text}` }
  throw new Error(`${JSON.stringify(text)} is no file and no image reference such as registry.example/name:tag`)
}

/** A registry on this machine is a test or a tunnel, and has no certificate. */
export const isOnLoopback = (reference: string): boolean =>
  /^docker:\/\/(localhost|127(\.\d+){3}|\[::1\])(:\d+)?\//.test(reference)

function layoutIn(folder: string): Source {
  if (existsSync(path.join(folder, 'oci-layout'))) return { type: 'oci', file: folder }
  throw new Error(`${folder} is no OCI layout: it has no file oci-layout`)
}

async function archiveIn(file: string): Promise<Source> {
  if ((await readMember(file, 'oci-layout'))?.includes('imageLayoutVersion')) {
    return { type: 'oci-archive', file }
  }
  // A root filesystem may have a file of that name as well, but not that content.
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
