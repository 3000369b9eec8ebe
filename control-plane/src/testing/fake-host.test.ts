/** The fake host keeps the same contract as the real host agent, which runs it in host-agent/src/host-contract.test.ts. */
import { testHostBuildContract } from '@warren/kit/testing/host-build-contract'
import { type ContractHost, testHostContract } from '@warren/kit/testing/host-contract'
import { startFakeHost } from './fake-host.ts'

const host = await startFakeHost()
let addresses = 0

const contractHost: ContractHost = {
  socket: host.socket,
  image: 'debian:13',
  newAddress: () => `100.64.1.${++addresses}`,
  killVm: (id) => host.killVm(id, 'the QEMU process exited'),
  vmStartMs: 100,
}
testHostContract(contractHost)
testHostBuildContract(contractHost)
