/** What a Dockerfile installs and sets is in every sandbox that is made from it. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { suite, test } from 'node:test'
import { EMPTY_IMAGE, evaluateStage, openStages, parseDockerfile } from '@warren/dockerfile'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { HOST_NETWORK_DEFAULT, type HostBuildBody, type HostBuildStep, newId } from '@warren/protocol'
import { startHostAgent } from '../testing/host-agent.ts'
import { BuildClient, run } from './testing.ts'

const skip =
  process.getuid?.() !== 0
    ? 'virtual machines need root'
    : spawnSync('qemu-system-x86_64', ['--version']).status !== 0 && 'QEMU is not installed'

const agent = skip ? (undefined as never) : await startHostAgent({ WARREN_POOL_MIB: '0' })
const client = skip ? (undefined as never) : new BuildClient(agent)

/** e2e/src/templates.test.ts installs packages from the network. */
const DOCKERFILE = `FROM debian:13
ENV GREETING="hello \\"world\\"" PATH=/opt/tools/bin:$PATH
ARG SECRET=of-the-build
RUN useradd --create-home --uid 1234 --groups daemon app && mkdir -p /opt/tools/bin
USER app
WORKDIR /srv/app/data
RUN <<EOF
#!/usr/bin/perl
open(my $file, '>', 'about') or die;
print $file "$< $) $ENV{'HOME'} $ENV{'SECRET'}\\n";
EOF
USER root
SHELL ["/bin/bash", "-c"]
RUN install -o app -g daemon -m 4750 /bin/true special && ln -s special link && [[ $GREETING == hello* ]] && umask > mask
RUN ["/bin/sh", "-c", "printf '#!/bin/sh\\\\necho tool\\\\n' > /opt/tools/bin/tool && chmod 755 /opt/tools/bin/tool"]
`

function plan(text: string): Pick<HostBuildBody, 'steps' | 'env'> {
  const { scope, stages } = openStages(parseDockerfile(text), 'amd64')
  const { steps, image } = evaluateStage(scope, EMPTY_IMAGE, stages[0]!)
  return { steps: steps as HostBuildStep[], env: image.env }
}

suite('an image built from a Dockerfile', { skip }, () => {
  const [id, vm] = [skip ? '' : client.newId(), newId('sandbox')]
  const image = `tpl:${id.slice(4)}`
  const size = { vcpu: 1, mem_mib: 1024, disk_mib: 10_240 }
  const identity = { hostname: 'made', envs: { MINE: 'mine' }, ssh_pubkeys: [], network: HOST_NETWORK_DEFAULT }
  const shell = async (script: string): Promise<string> => {
    const { stdout, stderr, exit } = await client.host.exec(vm, { cmd: 'sh', args: ['-c', script] })
    assert.equal(exit?.code, 0, stderr)
    return stdout.trim()
  }

  test('is built, published and booted', async () => {
    const body = client.body([], { ...plan(DOCKERFILE), bases: [size] })
    const built = await client.build(body, id)

    const log = await client.log(id)
    assert.equal(built.state, 'done', `${JSON.stringify(built.failure)}\n${log}`)
    assert.deepEqual([built.steps_run, built.steps], [5, 5])
    assert.ok(built.image!.size_bytes > 100e6 && built.image!.size_bytes < 1e9, `${built.image!.size_bytes}`)
  })

  test('starts a sandbox as fast as any other, with everything that the steps made', async () => {
    const place = { image, ip: client.newAddress(), limit_ms: scaleLimit(30_000), cpu_quota_pct: 100 }
    const created = await client.host.call('createVm', {}, { id: vm, fence: 1, ...size, ...identity, ...place })

    assert.deepEqual([created.status, created.body.how], [200, 'clone'], JSON.stringify(created.body))
    assert.equal(
      await shell('tool; echo "$GREETING"; echo "$MINE$SECRET"; pwd; id -u'),
      'tool\nhello "world"\nmine\n/root\n0',
    )
    assert.equal(
      await shell('cd /srv/app/data; stat -c "%U %G %a %F" . about special link; cat mask'),
      [
        'app app 755 directory',
        'app app 644 regular file',
        'app daemon 4750 regular file',
        'root root 777 symbolic link',
        '0022',
      ].join('\n'),
    )
    assert.equal(await shell('cat /srv/app/data/about'), '1234 1234 1 1234 /home/app of-the-build')
    assert.equal(await shell('ls /dev/pipes 2>/dev/null; cat /etc/hostname; wc -c < /etc/machine-id'), 'made\n33')
  })

  test('keeps its variables when its machine is booted from its disk', async () => {
    const record = JSON.parse(readFileSync(path.join(agent.dataDir, 'vms', `${vm}.json`), 'utf8'))
    process.kill(record.vmm.qemu.pid, 'SIGKILL')
    await until(async () => (await client.host.findVm(vm))?.state === 'dead', 'the VM is dead')

    const body = { fence: 2, cpu_quota_pct: 100, ip: record.ip, ...identity, limit_ms: scaleLimit(60_000) }
    const resumed = await client.host.call('resumeVm', { id: vm }, body)

    assert.deepEqual([resumed.status, resumed.body.how], [200, 'boot'], JSON.stringify(resumed.body))
    assert.equal(await shell('echo "$GREETING"; tool'), 'hello "world"\ntool')
  })

  test('can be the base of another, and its sandboxes live on without it', async () => {
    const child = await client.build(
      client.body([run('tool && cat /srv/app/data/mask', { env: { PATH: '/opt/tools/bin:/usr/bin' } })], { image }),
    )
    assert.equal(child.state, 'done', JSON.stringify(child.failure))
    assert.match(await client.log(child.id), /^0022$/m)

    await client.delete(id)

    assert.equal(await shell('tool'), 'tool')
    assert.equal(await client.host.codeOf('deleteVm', { id: vm }, { fence: 3 }), 200)
    await client.deleteAll()
    await client.checkNothingLeft(id)
  })
})
