/** Back-ups of earlier versions: restored to another directory, opened, migrated, and their sandboxes resumed. */
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { restore } from './support/back-up.ts'
import { ROOT } from './support/instance.ts'
import { checkCount, processClient } from './support/process-client.ts'
import { cannotCheckOut, RELEASES, type Release } from './support/releases.ts'
import { getSandbox, pauseSandbox, requestOk, resumeSandbox, runShell } from './support/sandboxes.ts'
import { ENVS, getUpgradeFixture, NUMBERS, type UpgradeFixture } from './support/upgrade-fixture.ts'
import {
  cannotRunVms,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
  type VmInstance,
} from './support/vm-instance.ts'

const NUMBERS_SUM = createHash('sha256')
  .update(Array.from({ length: NUMBERS }, (_, index) => `${index + 1}\n`).join(''))
  .digest('hex')
/** Sends each client its own address and that of the client. */
const SERVER = `use IO::Socket::INET; $s = IO::Socket::INET->new(LocalPort => 8000, Listen => 9, ReuseAddr => 1) or die;
while ($c = $s->accept) { print $c $c->sockhost, " ", $c->peerhost, "\\n"; close $c }`

/** All before the first test: node:test runs the clean-up of the file when the tests that it knows of have ended. */
const restored: { release: Release; skip: string | false; fixture: UpgradeFixture; warren: VmInstance }[] = []
for (const release of RELEASES) {
  const skip = cannotRunVms || cannotCheckOut(release)
  const started = await startUnlessSkipped(skip, async () => {
    const fixture = await getUpgradeFixture(release)
    return { fixture, warren: await startVmInstance({}, { fill: (dataDir) => restore(fixture.backUp, dataDir) }) }
  })
  restored.push({ release, skip, ...started })
}

for (const { release, skip, fixture, warren } of restored) {
  const checkContent = async (id: string, name: string) => {
    assert.equal(await runShell(warren, id, 'cat /root/name'), name)
    assert.equal(await runShell(warren, id, 'sha256sum < /root/numbers | cut -d" " -f1'), NUMBERS_SUM)
    assert.equal(await runShell(warren, id, 'printenv GREETING'), ENVS.GREETING)
  }

  describe(`the back-up of ${release.version}`, { skip, timeout: VM_STORIES_LIMIT_MS }, () => {
    test('a paused sandbox is resumed with its files, environment and processes', async () => {
      const { id, ip, processId } = fixture.paused
      const processes = processClient(warren, id)
      let counted = 0
      for (const round of ['of the earlier version', 'of this version']) {
        assert.equal((await getSandbox(warren, id)).status, 'paused', `before the resume from a snapshot ${round}`)

        const resumed = await resumeSandbox(warren, id)

        assert.equal(resumed.ip, ip)
        assert.equal(
          resumed.status_reason,
          release.mappedAddress &&
            `resumed with an older guest agent: inside the guest its address is ${release.mappedAddress} instead of ${ip}`,
        )
        await checkContent(id, 'paused')
        // The output from the first line on, which the guest agent kept, and more of it.
        const wanted = counted + 5
        const { bytes } = await processes.follow(processId, 0, (text) => text.split('\n').length > wanted)
        counted = checkCount(bytes.toString(), 1).length
        await pauseSandbox(warren, id)
      }
    })

    test('a sandbox that ran when its machine was switched off is booted from its disk', async () => {
      const { id, ip } = fixture.running
      const hasError = async () => (await getSandbox(warren, id)).status === 'error'
      await until(hasError, 'the missing QEMU process is noticed')

      const resumed = await resumeSandbox(warren, id)

      assert.equal(resumed.ip, ip)
      await checkContent(id, 'running')
      assert.equal(await runShell(warren, id, 'hostname -I'), ip)
    })

    test('both reach each other by name in their private network', async () => {
      await resumeSandbox(warren, fixture.paused.id)
      for (const [server, client] of [
        ['running', 'paused'],
        ['paused', 'running'],
      ] as const) {
        await requestOk(warren, 'POST', `/sandboxes/${fixture[server].id}/processes`, {
          cmd: 'perl',
          args: ['-e', SERVER],
        })
        const connect = () => runShell(warren, fixture[client].id, `nc -w 5 ${server} 8000 </dev/null || true`)
        const seen = await until(connect, 'the server answers')
        const serverAddress = (server === 'paused' && release.mappedAddress) || fixture[server].ip
        assert.equal(seen, `${serverAddress} ${fixture[client].ip}`)
      }
    })
  })
}

test('every version is an ancestor of this one, so that every full clone has it', { skip: isShallow() }, () => {
  for (const { commit } of RELEASES) {
    assert.match(commit, /^[0-9a-f]{40}$/)
    execFileSync('git', ['merge-base', '--is-ancestor', commit, 'HEAD'], { cwd: ROOT })
  }
})

function isShallow(): string | false {
  return RELEASES.map(cannotCheckOut).find((reason) => reason !== false) ?? false
}
