/** The same network set up with the commands `ip` and `nft`, with as few processes as possible. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { GUEST_GATEWAY, HOST_ADDRESS, LINK_MACS } from '../../../host-agent/src/net/names.ts'
import { renderSlotPolicy } from '../../../host-agent/src/net/netd/nft/slot-policy.ts'
import { renderOwner, renderSlotTable } from '../../../host-agent/src/net/netd/nft/slot-table.ts'
import type { Policy } from '../../../host-agent/src/net/policy.ts'

const NAME = 'warren-bench'
const OUTER = 'wbench0'

export async function setUpWithCommands(ip: string, mtu: number, policy: Policy): Promise<void> {
  const { inner, outer } = LINK_MACS
  await runWithInput('ip', ['netns', 'add', NAME])
  await runWithInput(
    'ip',
    ['-batch', '-'],
    [
      `link add ${OUTER} address ${outer} mtu ${mtu} type veth peer name v0 address ${inner} mtu ${mtu} netns ${NAME}`,
      `addr add ${HOST_ADDRESS}/32 dev ${OUTER}`,
      `link set ${OUTER} up`,
      `route add ${ip}/32 dev ${OUTER}`,
      `neigh add ${ip} lladdr ${inner} dev ${OUTER}`,
    ],
  )
  await runWithInput(
    'ip',
    ['-n', NAME, '-batch', '-'],
    [
      'tuntap add tap0 mode tap',
      `addr add ${GUEST_GATEWAY}/30 dev tap0`,
      'link set tap0 up',
      `route add ${ip}/32 dev tap0`,
      'link set v0 up',
      `neigh add ${HOST_ADDRESS} lladdr ${outer} dev v0`,
      `route add ${HOST_ADDRESS}/32 dev v0`,
      `route add default via ${HOST_ADDRESS} dev v0`,
    ],
  )
  const rules = renderSlotPolicy(policy, { limitBytes: policy.quotaBytes, usedBytes: 0 }, false)
  await applyWithNft(NAME, [renderSlotTable(), rules, renderOwner({ ip, guestAddress: ip })])
}

export const tearDownWithCommands = (): Promise<void> => runWithInput('ip', ['netns', 'del', NAME])

/** Runs `nft -f` in the named namespace. */
export const applyWithNft = (netns: string, text: string[]): Promise<void> =>
  runWithInput('ip', ['netns', 'exec', netns, 'nft', '-f', '-'], text)

async function runWithInput(command: string, args: string[], lines: string[] = []): Promise<void> {
  const child = spawn(command, args, { stdio: ['pipe', 'ignore', 'inherit'] })
  child.stdin.on('error', () => {}) // Its exit status is reported instead.
  child.stdin.end(`${lines.join('\n')}\n`)
  const [code] = await once(child, 'exit')
  if (code !== 0) throw new Error(`${command} ${args.join(' ')} exited with ${code}`)
}
