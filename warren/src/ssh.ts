/**
 * `warren ssh <sandbox>`: OpenSSH through a tunnel, so that a sandbox needs no reachable address. Its own keys decide
 * who gets in: those of `ssh_pubkeys`, and the one of --add-key.
 *
 * Host keys are not remembered. That it is the right machine at the other end says the API, by the id and over a
 * connection of its own; a name may belong to another machine tomorrow, and ssh would call that an attack.
 */
import { spawn } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import type { SshPubkeysView } from '@warren/protocol'
import { ask, getApi, getSandboxId } from './api.ts'
import { ROOT } from './config.ts'

/** `ssh box.warren`, with what `warren ssh --config` prints in ~/.ssh/config. */
export const SSH_SUFFIX = /\.warren$/
const HOST_KEY_OPTIONS = ['StrictHostKeyChecking=no', 'UserKnownHostsFile=/dev/null', 'LogLevel=ERROR']

type Options = { addKey?: string; config?: true }

export async function runSsh(target: string | undefined, args: string[], options: Options): Promise<void> {
  if (options.config) return void process.stdout.write(renderSshConfig())
  if (target === undefined) throw new Error('which sandbox? warren ssh --help says more')
  const [sandbox = '', user = 'root'] = target.split('@').reverse()
  const api = await getApi()
  const id = await getSandboxId(api, sandbox.replace(SSH_SUFFIX, ''))
  if (options.addKey !== undefined) {
    const keys = (await readFile(options.addKey, 'utf8')).split('\n').filter((line) => line.trim() !== '')
    await ask<SshPubkeysView>(api, 'POST', `/v1/sandboxes/${id}/ssh-pubkeys`, { keys })
  }
  const settings = [`ProxyCommand=${proxyCommand(id)}`, `User=${user}`, ...HOST_KEY_OPTIONS]
  // OpenSSH takes options behind the name as well, so that all of the caller's arguments may stay together.
  const child = spawn('ssh', [...settings.flatMap((one) => ['-o', one]), id, ...args], {
    stdio: 'inherit',
    env: { ...process.env, WARREN_BASE_URL: api.baseUrl, WARREN_API_KEY: api.key },
  })
  process.exitCode = await new Promise<number>((resolve, reject) => {
    child.once('error', (error) => reject(new Error('cannot run ssh; is openssh-client installed?', { cause: error })))
    child.once('exit', (code) => resolve(code ?? 255))
  })
}

export function renderSshConfig(): string {
  const options = [
    `ProxyCommand ${proxyCommand('%n')}`,
    'User root',
    ...HOST_KEY_OPTIONS.map((o) => o.replace('=', ' ')),
  ]
  return `Host *.warren\n${options.map((option) => `  ${option}\n`).join('')}`
}

/** For the shell that ssh runs it with; ssh itself reads every `%`. */
function proxyCommand(sandbox: string): string {
  const quote = (text: string) => `'${text.replaceAll("'", "'\\''").replaceAll('%', '%%')}'`
  return `${quote(process.execPath)} ${quote(path.join(ROOT, 'warren/src/main.ts'))} tunnel ${sandbox} 22`
}
