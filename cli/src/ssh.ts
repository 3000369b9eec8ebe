/**
 * `warren ssh <sandbox>`: runs OpenSSH through a tunnel, so the sandbox needs no reachable address. The sandbox
 * accepts the keys of `ssh_pubkeys` and the one added with --add-key.
 *
 * Host keys are neither checked nor stored. The API already guarantees that the tunnel ends in the right sandbox, because
 * it is opened by id. A name can be given to another sandbox later, and ssh would then report a changed host key as an
 * attack.
 */

import { spawn } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { warrenCommand } from '@warren/kit/warren-command'
import type { SshPubkeysView } from '@warren/protocol'
import { callApi, getApi, getSandboxId } from './api.ts'
import { ROOT, resolvePath } from './config.ts'

/** Host names in ~/.ssh/config end in this suffix: `ssh my-sandbox.warren`. */
export const SSH_SUFFIX = /\.warren$/
const HOST_KEY_OPTIONS = ['StrictHostKeyChecking=no', 'UserKnownHostsFile=/dev/null', 'LogLevel=ERROR']

type Options = { addKey?: string; config?: true }

export async function runSsh(target: string | undefined, args: string[], options: Options): Promise<void> {
  if (options.config) return void process.stdout.write(renderSshConfig())
  if (target === undefined) throw new Error(`the name or id of a sandbox is missing; see ${warrenCommand()} ssh --help`)
  const [sandbox = '', user = 'root'] = target.split('@').reverse()
  const api = await getApi()
  const id = await getSandboxId(api, sandbox.replace(SSH_SUFFIX, ''))
  if (options.addKey !== undefined) {
    const keys = await readPublicKeys(options.addKey)
    await callApi<SshPubkeysView>(api, 'POST', `/v1/sandboxes/${id}/ssh-pubkeys`, { keys })
  }
  const settings = [`ProxyCommand=${proxyCommand(id)}`, `User=${user}`, ...HOST_KEY_OPTIONS]
  // OpenSSH accepts options after the host name too, so the caller's arguments can be passed unchanged.
  const child = spawn('ssh', [...settings.flatMap((one) => ['-o', one]), id, ...args], {
    stdio: 'inherit',
    env: { ...process.env, WARREN_BASE_URL: api.baseUrl, WARREN_API_KEY: api.key },
  })
  process.exitCode = await new Promise<number>((resolve, reject) => {
    child.once('error', (error) => reject(new Error('cannot run ssh; is openssh-client installed?', { cause: error })))
    child.once('exit', (code) => resolve(code ?? 255))
  })
}

/** The keys of a file, one per line. */
export async function readPublicKeys(file: string, env = process.env): Promise<string[]> {
  const text = await readFile(resolvePath(file, env), 'utf8')
  return text.split('\n').filter((line) => line.trim() !== '')
}

export function renderSshConfig(): string {
  const options = [
    `ProxyCommand ${proxyCommand('%n')}`,
    'User root',
    ...HOST_KEY_OPTIONS.map((o) => o.replace('=', ' ')),
  ]
  return `Host *.warren\n${options.map((option) => `  ${option}\n`).join('')}`
}

/** Quoted for the shell that runs it. ssh expands `%` first, so a literal one is doubled. */
function proxyCommand(sandbox: string): string {
  const quote = (text: string) => `'${text.replaceAll("'", "'\\''").replaceAll('%', '%%')}'`
  return `${quote(process.execPath)} ${quote(path.join(ROOT, 'cli/src/main.ts'))} tunnel ${sandbox} 22`
}
