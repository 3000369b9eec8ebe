/**
 * Everything works alike on Debian and on a root file system that has nothing but busybox, like Alpine: guests need no
 * program of their image, except those that the caller runs.
 */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { encodeShellFrame } from '@warren/protocol'
import { hasBusybox, makeBusyboxRoot } from './support/busybox-root.ts'
import { fetchPath, runWarren } from './support/instance.ts'
import { processClient } from './support/process-client.ts'
import {
  createSandbox,
  destroySandbox,
  forkSandbox,
  pauseSandbox,
  requestOk,
  resumeSandbox,
  runShell,
  untilInGuest,
} from './support/sandboxes.ts'
import { templateClient } from './support/templates.ts'
import { upgrade } from './support/upgrade.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const skip = cannotRunVms || (hasBusybox() ? false : 'busybox-static is not installed')
/** The image cache belongs to the whole machine, so the name is unique and removed at the end. */
const BUSYBOX = `busybox-${randomBytes(4).toString('hex')}:1`
const folder = await mkdtemp(path.join(tmpdir(), 'warren-every-root-'))
const warren = await startUnlessSkipped(skip, async () => {
  const settings = {
    ...{ WARREN_TEMPLATE_BASES: `debian:13,${BUSYBOX}`, WARREN_TEMPLATE_SHAPES: 's-1vcpu-256mb' },
    ...{ WARREN_BUILD_VCPU: '1', WARREN_BUILD_MEM_MIB: '256' },
  }
  const started = await startVmInstance({ ...settings, WARREN_SHARED_BASES: 'none' })
  const tarball = path.join(folder, 'root.tar')
  makeBusyboxRoot(tarball)
  const imported = await runWarren(started.instance.dataDir, 'images', 'import', tarball, '--name', BUSYBOX)
  assert.equal(imported.code, 0, imported.stderr)
  return started
})
after(async () => {
  await rm(folder, { recursive: true })
  if (!skip) await runWarren(warren.instance.dataDir, 'images', 'rm', BUSYBOX)
})

for (const rootfs of ['debian:13', BUSYBOX]) {
  describe(`a sandbox of ${rootfs.replace(/-.*/, '')}`, { skip, timeout: VM_STORIES_LIMIT_MS }, () => {
    let id: string
    let name: string
    const shell = (script: string) => runShell(warren, id, script)
    const exec = async (body: object) =>
      (await requestOk(warren, 'POST', `/sandboxes/${id}/exec`, body)).result as Record<string, unknown>
    const input = (text: string) => encodeShellFrame({ type: 'input', data: Buffer.from(text) })

    test('is created, and its disk has grown to the size that was asked for', async () => {
      const listed = async () => (await (await fetchPath(warren.instance, '/v1/rootfs')).text()).includes(rootfs)
      await until(listed, `${rootfs} is in the catalog`)

      ;({ id, name } = await createSandbox(warren, { rootfs, disk_mib: 20_480, envs: { GREETING: 'hello' } }))

      const kilobytes = Number(await shell("df -k / | awk 'END { print $2 }'"))
      assert.ok(kilobytes > 19_000 * 1024 && kilobytes <= 20_480 * 1024, `${kilobytes} KiB`)
    })

    test('grows its disk while it runs', async () => {
      await requestOk(warren, 'POST', `/sandboxes/${id}/resize`, { disk_mib: 30_720 })

      const kilobytes = Number(await shell("df -k / | awk 'END { print $2 }'"))
      assert.ok(kilobytes > 29_000 * 1024 && kilobytes <= 30_720 * 1024, `${kilobytes} KiB`)
    })

    test('runs commands with their environment, directory, output and exit code', async () => {
      const script = 'echo "$GREETING"; pwd; id -un; echo bad >&2; exit 7'
      const result = await exec({ cmd: 'sh', args: ['-c', script] })

      assert.deepEqual([result.stdout, result.stderr, result.exit_code], ['hello\n/root\nroot\n', 'bad\n', 7])
      assert.equal(await shell('cat /etc/hostname; wc -c < /etc/machine-id'), `${name}\n33`)
    })

    test('has its name, a resolver and the network', async () => {
      assert.equal(await shell('hostname; grep -c ^nameserver /etc/resolv.conf'), `${name}\n1`)
      assert.equal(await shell('ip route | grep -c ^default || route -n | grep -c ^0.0.0.0'), '1')
    })

    test('runs managed processes with input, signals and a terminal', async () => {
      const processes = processClient(warren, id)

      const cat = await processes.start({ cmd: 'cat' })
      await processes.write(cat.process_id, 'echoed\n')
      const { seq, bytes } = await processes.follow(cat.process_id, 0, (text) => text.includes('echoed'))
      assert.equal(bytes.toString(), 'echoed\n')
      await processes.delete(cat.process_id, 0)
      assert.ok(seq > 0)
      const terminal = await processes.start({ pty: { rows: 40, cols: 100 } })
      await processes.write(terminal.process_id, 'stty size; tty; echo "$HOME"; exit 3\n')
      const { bytes: screen, end } = await processes.follow(terminal.process_id, 0)
      assert.match(screen.toString(), /40 100\r\n\/dev\/pts\/\d+\r\n\/root\r\n/)
      assert.deepEqual(end && 'exit_code' in end && end.exit_code, 3)
    })

    test('opens login shells', async () => {
      const resize = encodeShellFrame({ type: 'resize', rows: 33, cols: 99 })

      const opened = await upgrade(warren, id, '/shell', Buffer.concat([resize, input('stty size; pwd\n')]))

      await until(() => /33 99\r\n\/root\r\n/.test(opened.body().toString()), 'size and directory of the shell')
      opened.socket.write(input('exit\n'))
      if (!opened.socket.readableEnded) await once(opened.socket, 'end')
      opened.socket.destroy()
    })

    test('takes and returns files', async () => {
      const url = `${warren.instance.baseUrl}/v1/sandboxes/${id}/files?path=/srv/new/data.bin`
      const headers = { 'x-api-key': warren.instance.key }
      const content = randomBytes(1024 * 1024)

      const put = await fetch(url, { method: 'PUT', headers, body: content })
      const got = Buffer.from(await (await fetch(url, { headers })).arrayBuffer())

      assert.equal(put.status, 200, await put.text())
      assert.ok(got.equals(content))
      assert.equal(await shell('wc -c < /srv/new/data.bin'), String(content.length))
    })

    test('is reached through tunnels', async () => {
      await shell('printf "from inside" > /root/index.html')
      const server = { cmd: 'busybox', args: ['httpd', '-f', '-p', '127.0.0.1:8099', '-h', '/root'] }
      await processClient(warren, id).start(server)
      await untilInGuest(warren, id, 'grep -qi ":1FA3 .* 0A " /proc/net/tcp')

      const tunnel = await upgrade(warren, id, '/tunnel/8099', 'GET /index.html HTTP/1.0\r\n\r\n')

      await until(() => tunnel.body().includes('from inside'), 'the page')
      assert.equal((await upgrade(warren, id, '/tunnel/9')).status, '502')
      tunnel.socket.destroy()
    })

    test('forks with another identity, and pauses and resumes', async () => {
      const identity = 'cat /etc/machine-id; hostname; head -c 16 /dev/urandom | od -An -tx1'
      await shell('echo shared > /root/note')

      const fork = await forkSandbox(warren, id, { live: true })

      const [ours, theirs] = await Promise.all([shell(identity), runShell(warren, fork.id, identity)])
      for (const [at, line] of ours.split('\n').entries()) assert.notEqual(line, theirs.split('\n')[at])
      assert.equal(await runShell(warren, fork.id, 'cat /root/note; hostname'), `shared\n${fork.name}`)
      await pauseSandbox(warren, fork.id)
      await resumeSandbox(warren, fork.id)
      assert.equal(await runShell(warren, fork.id, 'cat /root/note; hostname'), `shared\n${fork.name}`)
      await destroySandbox(warren, fork.id)
      await destroySandbox(warren, id)
    })

    test('is the base of a template', async () => {
      const lines = [`FROM ${rootfs}`, 'ENV MADE=yes', 'RUN adduser --help 2>&1 | head -1; echo made > /made']
      const { id: template } = await templateClient(warren).build('on-it', lines.join('\n'))

      const sandbox = await createSandbox(warren, { rootfs: template })

      assert.equal(await runShell(warren, sandbox.id, 'cat /made; echo $MADE'), 'made\nyes')
      await destroySandbox(warren, sandbox.id)
      await templateClient(warren).delete(template)
    })
  })
}
