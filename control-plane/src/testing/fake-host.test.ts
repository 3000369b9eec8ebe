/** The fake host keeps the same contract as the real host agent, which runs it in host-agent/src/host-contract.test.ts. */
import { testHostContract } from '@warren/kit/testing/host-contract'
import { startFakeHost } from './fake-host.ts'

const host = await startFakeHost()
let addresses = 0

testHostContract({
  socket: host.socket,
  image: 'debian:13',
  newAddress: () => `100.64.1.${++addresses}`,
  killVm: (id) => host.killVm(id, 'the QEMU process exited'),
})
