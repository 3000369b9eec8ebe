/** Templates from the Dockerfile to the sandbox, through the command line and the API, with real VMs. */
import assert from 'node:assert/strict'
import { existsSync, readdirSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { SLOWNESS } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { templateImageName } from '@warren/protocol'
import { getHostAgentPid, kill, runWarren } from './support/instance.ts'
import { createSandbox, destroySandbox, forkSandbox, request, runShell } from './support/sandboxes.ts'
import { countSteps, templateClient, textOf } from './support/templates.ts'
import {
  cannotRunVms,
  skipWithoutImage,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const skip = cannotRunVms || (await skipWithoutImage('devbox:1'))
/** On a network that intercepts TLS its authority is among these, and pip in the guest needs it. */
const LOCAL_CERTIFICATES = '/usr/local/share/ca-certificates'
const hasCertificates = existsSync(LOCAL_CERTIFICATES) && readdirSync(LOCAL_CERTIFICATES).length > 0
const settings = {
  // The shape of a base that exists already, and one shape instead of two: each is a boot.
  ...{ WARREN_BUILD_VCPU: '1', WARREN_BUILD_MEM_MIB: '1024', WARREN_TEMPLATE_SHAPES: 's-1vcpu-256mb' },
  // So that only builds and sandboxes have disks.
  WARREN_POOL_MIB: '0',
  WARREN_BUILD_LIMIT_SECONDS: String(Math.ceil(600 * SLOWNESS)),
  ...(hasCertificates && { WARREN_GUEST_CA_FILE: LOCAL_CERTIFICATES }),
}
const warren = await startUnlessSkipped(skip, () => startVmInstance(settings))
const folder = await mkdtemp(path.join(tmpdir(), 'warren-dockerfiles-'))
after(() => rm(folder, { recursive: true }))

const TOOLS = `FROM devbox:1
ENV GREETING="hello \\"world\\"" PATH=/opt/tools/bin:$PATH
RUN apt-get update && apt-get install -y --no-install-recommends tree && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir six && useradd --create-home --uid 1234 --groups daemon app
USER app
WORKDIR /srv/app
RUN id -un > owner && umask > mask
USER root
RUN install -o app -g daemon -m 4750 /bin/true special && mkdir -p /opt/tools/bin \\
 && printf '#!/bin/sh\\necho tool\\n' > /opt/tools/bin/tool && chmod 755 /opt/tools/bin/tool
`
const steps = (fourth: string) =>
  ['FROM debian:13', ...[1, 2, 3, fourth, 5].map((step) => `RUN echo ${step} >> /steps`)].join('\n')

describe('a template', { skip, timeout: VM_STORIES_LIMIT_MS }, () => {
  const templates = templateClient(warren)
  const cli = (...args: string[]) => runWarren(warren.instance.dataDir, 'templates', ...args)
  const writeDockerfile = async (name: string, text: string): Promise<string> => {
    const file = path.join(folder, name)
    await writeFile(file, text)
    return file
  }

  test('is built with `warren templates build --follow`, and its sandboxes have what the steps made', async () => {
    const built = await cli('build', '-f', await writeDockerfile('Dockerfile', TOOLS), '--name', 'tools', '--follow')

    assert.equal(built.code, 0, built.stdout + built.stderr)
    assert.match(built.stdout, /^#1 \[1\/5\] RUN apt-get update/m)
    assert.match(built.stdout, /^Setting up tree /m)
    assert.match(built.stdout, /^Successfully installed six/m)
    assert.deepEqual(countSteps(built.stdout), { cached: 0, run: 5 })
    assert.match(built.stdout, /^tools is ready after [\d.]+ s: tpl_\w+, \d+ MB\./m)
    assert.match((await cli('ls')).stdout, /^tpl_\w+ +tools +devbox:1 +ready +\d+ MB/m)

    const sandbox = await createSandbox(warren, { rootfs: 'tools', envs: { MINE: 'mine' } })

    assert.equal((sandbox as { spawn_kind?: string }).spawn_kind, 'clone')
    const script = `cd /srv/app; tree --version | cut -d' ' -f1; python3 -c 'import six; print(six.__name__)'; tool
      echo "$GREETING $MINE"; cat owner mask; stat -c '%U %G %a' . owner special /home/app; id -un; cd; pwd`
    assert.deepEqual((await runShell(warren, sandbox.id, script)).split('\n'), [
      ...['tree', 'six', 'tool', 'hello "world" mine', 'app', '0022'],
      ...['app app 755', 'app app 644', 'app daemon 4750', 'app app 700', 'root', '/root'],
    ])
  })

  test('lives on in its sandboxes when it is deleted, and its files go with the last of them', async () => {
    const { id } = await templates.get('tools')
    const [first] = (await warren.client.listSandboxes()).map((sandbox) => sandbox.id)
    const images = path.join(warren.instance.dataDir, 'templates/images')

    assert.match((await cli('rm', 'tools')).stdout, new RegExp(`^Deleted ${id}\\.$`, 'm'))

    assert.equal((await request(warren, 'GET', '/templates/tools')).status, 404)
    assert.equal((await request(warren, 'POST', '/sandboxes', { rootfs: 'tools' })).status, 400)
    const fork = await forkSandbox(warren, first!, { live: true })
    assert.equal(await runShell(warren, fork.id, 'tool; tree --version | cut -c1-4'), 'tool\ntree')
    for (const sandbox of [first!, fork.id]) await destroySandbox(warren, sandbox)
    const listNames = async () => (await runWarren(warren.instance.dataDir, 'images', '--json', 'list')).stdout
    await until(async () => !(await listNames()).includes(templateImageName(id)), 'its image is not listed')
    await until(() => readdirSync(path.join(images, 'roots')).length === 0, 'its file is removed')
  })

  test('is taken from the cache when nothing changed, and from the changed step on it is built again', async () => {
    const first = await templates.build('steps', steps('4'))
    const again = await templates.build('steps', steps('4'))
    const changed = await templates.build('steps', steps('four'))
    const withoutCache = await templates.build('steps', steps('four'), { no_cache: true })

    const counts = await Promise.all(
      [first, again, changed, withoutCache].map(async ({ id }) => countSteps(await templates.readText(id))),
    )
    assert.deepEqual(counts, [
      { cached: 0, run: 5 },
      { cached: 5, run: 0 },
      { cached: 3, run: 2 },
      { cached: 0, run: 5 },
    ])
    const sandbox = await createSandbox(warren, { rootfs: changed.id })
    assert.equal(await runShell(warren, sandbox.id, 'tr "\\n" " " < /steps'), '1 2 3 four 5')
    await destroySandbox(warren, sandbox.id)
  })

  test('can be the base of another one', async () => {
    const child = await templates.build('child', 'FROM steps\nENV FROM_CHILD=yes\nRUN cat /steps && touch /child')

    assert.match(await templates.readText(child.id), /^four$/m)
    const sandbox = await createSandbox(warren, { rootfs: 'child' })
    assert.equal(await runShell(warren, sandbox.id, 'ls /child; tail -1 /steps; echo $FROM_CHILD'), '/child\n5\nyes')
    await destroySandbox(warren, sandbox.id)
  })

  test('that fails says why, and its log can be read again from any line', async () => {
    const file = await writeDockerfile('Broken', 'FROM debian:13\nRUN echo before\nRUN echo broken >&2; exit 3\n')

    const built = await cli('build', '-f', file, '--name', 'broken', '--follow')

    assert.equal(built.code, 1)
    assert.match(built.stdout + built.stderr, /ERROR: line 3: RUN echo broken .* ended with exit code 3/)
    const { id, status, failure_reason } = await templates.get('broken')
    assert.deepEqual([status, failure_reason], ['failed', 'line 3: RUN echo broken >&2; exit 3 ended with exit code 3'])
    const all = await templates.readLog(id, 'follow=true')
    const rest = await templates.readLog(id, 'follow=true&after=3')
    assert.deepEqual(all.at(-1), { final: true, status: 'failed' })
    assert.deepEqual(rest, all.slice(3))
    assert.equal((await cli('logs', id)).stdout, textOf(all))
  })

  test('that is deleted while it is built ends the reader of its log, and its VM', async () => {
    const { id } = await templates.submit('slow', 'FROM debian:13\nRUN echo started; sleep 120')
    await templates.untilLogged(id, 'started')
    const log = templates.readLog(id, 'follow=true')

    await templates.delete(id)

    assert.deepEqual((await log).at(-1), { final: true, status: 'failed' })
    const bodies = path.join(warren.instance.dataDir, 'bodies')
    await until(() => readdirSync(bodies).length === 0, 'the disk of the build is removed')
  })

  test('whose host agent is killed is built again, from its last cached step on', async () => {
    const dockerfile = 'FROM debian:13\nRUN echo kept > /kept\nRUN echo started; sleep 8; cat /kept'
    const { id } = await templates.submit('retried', dockerfile)
    await templates.untilLogged(id, 'started')

    kill(await getHostAgentPid(warren.instance.dataDir), 'SIGKILL')

    // The log ends with the connection to the host; the command continues after its last line.
    const followed = await cli('logs', '-f', id)
    assert.equal(followed.code, 0, followed.stdout + followed.stderr)
    assert.match(followed.stdout, /^ERROR: the host agent restarted$/m)
    const second = textOf(await templates.readLog(id, 'attempt=2'))
    assert.deepEqual(countSteps(second), { cached: 1, run: 1 })
    assert.match(second, /^kept$/m)
  })
})
