/** SSH into a real VM with the OpenSSH client, through `warren ssh` and `warren tunnel`. */

import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import net from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { runWarren } from './support/instance.ts'
import {
  createSandbox,
  destroySandbox,
  forkSandbox,
  pauseSandbox,
  requestOk,
  resumeSandbox,
  runShell,
  type SandboxView,
  untilInGuest,
} from './support/sandboxes.ts'
import {
  cannotRunVms,
  skipWithoutImage,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const IMAGE = 'devbox:1'
const cannotSsh =
  cannotRunVms ||
  (spawnSync('ssh', ['-V']).status === 0 ? false : 'OpenSSH is not installed') ||
  (await skipWithoutImage(IMAGE))

const warren = await startUnlessSkipped(cannotSsh, () => startVmInstance())
const folder = await mkdtemp(path.join(tmpdir(), 'warren-ssh-'))
after(() => rm(folder, { recursive: true }))
const at = (name: string) => path.join(folder, name)

/** An SSH handshake with an emulated VM on a busy machine is slow. */
const SSH_LIMIT_MS = scaleLimit(120_000)

describe('ssh into a real VM', { skip: cannotSsh, timeout: VM_STORIES_LIMIT_MS }, () => {
  let sandbox: SandboxView

  async function createKey(name: string): Promise<string> {
    spawnSync('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-C', name, '-f', at(name)])
    return (await readFile(at(`${name}.pub`), 'utf8')).trim()
  }

  /** Without the keys and the settings of the user who runs the test. */
  const sshOptions = (key: string) => ['-F', 'none', '-i', at(key), '-o', 'IdentitiesOnly=yes', '-o', 'BatchMode=yes']
  const ssh = (name: string, key: string, ...command: string[]) =>
    runWarren(warren.instance.dataDir, 'ssh', name, ...sshOptions(key), ...command)

  /** Runs scp or sftp with the lines that `warren ssh --config` prints, as from ~/.ssh/config. */
  async function run(command: string, ...args: string[]): Promise<void> {
    const env = {
      PATH: process.env.PATH,
      WARREN_BASE_URL: warren.instance.baseUrl,
      WARREN_API_KEY: warren.instance.key,
    }
    const child = spawn(command, ['-F', at('config'), ...args], { env, timeout: SSH_LIMIT_MS })
    let output = ''
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (text) => (output += text))
    const [code] = await once(child, 'close')
    assert.equal(code, 0, `${command} ${args.join(' ')}: ${output}`)
  }

  test('a key given at create is accepted; output and exit code are passed on', async () => {
    sandbox = await createSandbox(warren, {
      rootfs: IMAGE,
      shape: 's-1vcpu-1gb',
      ssh_pubkeys: [await createKey('first')],
    })

    const { code, stdout, stderr } = await ssh(sandbox.name, 'first', 'echo $USER at $(hostname); exit 7')

    assert.deepEqual([stdout, code], [`root at ${sandbox.name}\n`, 7], stderr)
  })

  test('another key is rejected until it is added, and then works at once', async () => {
    await createKey('second')

    const rejected = await ssh(sandbox.name, 'second', 'true')
    const added = await runWarren(
      ...([warren.instance.dataDir, 'ssh', '--add-key', at('second.pub'), sandbox.id] as const),
      ...sshOptions('second'),
      'echo in',
    )

    assert.equal(rejected.code, 255)
    assert.match(rejected.stderr, /Permission denied \(publickey/)
    assert.deepEqual([added.stdout, added.code], ['in\n', 0], added.stderr)
  })

  test('scp and sftp transfer files in both directions', async () => {
    const bytes = randomBytes(3 * 1024 * 1024 + 1)
    await writeFile(at('there'), bytes)
    const { stdout } = await runWarren(warren.instance.dataDir, 'ssh', '--config')
    const keys = `  IdentityFile ${at('first')}\n  IdentitiesOnly yes\n  BatchMode yes\n`
    await writeFile(at('config'), stdout + keys)
    await writeFile(at('batch'), `get /root/there ${at('back')}\n`)

    await run('scp', at('there'), `${sandbox.name}.warren:/root/there`)
    await run('sftp', '-b', at('batch'), `${sandbox.name}.warren`)

    assert.ok(bytes.equals(await readFile(at('back'))))
  })

  test('a forwarded port reaches a server in the guest', async () => {
    await requestOk(warren, 'POST', `/sandboxes/${sandbox.id}/processes`, {
      cmd: 'python3',
      args: ['-m', 'http.server', '-b', '127.0.0.1', '-d', '/etc', '8077'],
    })
    await untilInGuest(warren, sandbox.id, 'curl -s -o /dev/null 127.0.0.1:8077')
    const port = await findFreePort()
    const env = {
      PATH: process.env.PATH,
      WARREN_BASE_URL: warren.instance.baseUrl,
      WARREN_API_KEY: warren.instance.key,
    }
    const args = ['-F', at('config'), '-N', '-L', `127.0.0.1:${port}:127.0.0.1:8077`, `${sandbox.name}.warren`]
    const forwarding = spawn('ssh', args, { env, stdio: 'ignore' })
    try {
      const page = () => fetch(`http://127.0.0.1:${port}/hostname`).then((response) => response.text())
      await until(async () => (await page().catch(() => '')) !== '', 'the port is forwarded', SSH_LIMIT_MS)

      assert.equal((await page()).trim(), sandbox.name)
    } finally {
      const ended = once(forwarding, 'close')
      forwarding.kill()
      await ended
    }
  })

  test('authorized keys survive pause and fork; a fork gets another host key', async () => {
    const hostKey = (id: string) => runShell(warren, id, 'cat /etc/ssh/ssh_host_ed25519_key.pub')
    const before = await hostKey(sandbox.id)

    await pauseSandbox(warren, sandbox.id)
    const child = await forkSandbox(warren, sandbox.id)
    await resumeSandbox(warren, sandbox.id)

    for (const { name } of [sandbox, child]) {
      for (const key of ['first', 'second']) {
        const { stdout, stderr } = await ssh(name, key, 'hostname')
        assert.equal(stdout.trim(), name, stderr)
      }
    }
    assert.equal(await hostKey(sandbox.id), before)
    assert.notEqual(await hostKey(child.id), before)
    await destroySandbox(warren, child.id)
  })

  test('an uploaded authorized_keys file and a server started by hand work, as the public CLI uses them', async () => {
    const own = await createSandbox(warren, { rootfs: IMAGE, shape: 's-1vcpu-1gb' })
    const listening = 'grep -q :0016 /proc/net/tcp /proc/net/tcp6'
    const file = new URL(`/v1/sandboxes/${own.id}/files?path=/root/.ssh/authorized_keys`, warren.instance.baseUrl)

    await fetch(file, { method: 'PUT', headers: { 'x-api-key': warren.instance.key }, body: await createKey('third') })
    await runShell(warren, own.id, `chmod 700 /root/.ssh && chmod 600 /root/.ssh/authorized_keys && mkdir -p /run/sshd`)
    await runShell(warren, own.id, '/usr/sbin/sshd')
    await untilInGuest(warren, own.id, listening)

    const { code, stdout, stderr } = await ssh(own.name, 'third', 'hostname')
    assert.deepEqual([stdout.trim(), code], [own.name, 0], stderr)
    await destroySandbox(warren, own.id)
  })

  test('failures get clear messages', async () => {
    const bare = await createSandbox(warren)

    const noServer = await runWarren(warren.instance.dataDir, 'tunnel', bare.name, '22')
    const noSandbox = await runWarren(warren.instance.dataDir, 'ssh', 'missing')
    const noPort = await runWarren(warren.instance.dataDir, 'tunnel', bare.name, 'http')

    assert.match(noServer.stderr, /^warren: .*port 22.*openssh-server\n$/)
    assert.equal(noSandbox.stderr, 'warren: you have no sandbox named missing\n')
    assert.equal(noPort.stderr, 'warren: http is not a port number\n')
    for (const { code, stdout } of [noServer, noSandbox, noPort]) assert.deepEqual([code, stdout], [1, ''])
    await destroySandbox(warren, bare.id)
  })
})

async function findFreePort(): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as net.AddressInfo
  server.close()
  await once(server, 'close')
  return port
}
