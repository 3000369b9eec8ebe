/** The fake host keeps the same contract as the real host agent, which runs it in host-agent/src/host-contract.test.ts. */
import { testHostBuildContract } from '@warren/kit/testing/host-build-contract'
import { type ContractHost, testHostContract } from '@warren/kit/testing/host-contract'
import { testHostDiskContract } from '@warren/kit/testing/host-disk-contract'
import { startFakeHost } from './fake-host.ts'
import { WRONG_SECRET } from './fake-mounts.ts'

const host = await startFakeHost()
let addresses = 0

const contractHost: ContractHost = {
  socket: host.socket,
  image: 'debian:13',
  newAddress: () => `100.64.1.${++addresses}`,
  killVm: (id) => host.killVm(id, 'the QEMU process exited'),
  vmStartMs: 100,
  disk: {
    ...{ endpoint: 'https://store.example.com', region: 'auto', bucket: 'data' },
    ...{ use_path_style: true, allow_loopback: false },
    credentials: { access_key: 'key', secret_key: 'secret' },
    wrongCredentials: { access_key: 'key', secret_key: WRONG_SECRET },
  },
}
testHostContract(contractHost)
testHostBuildContract(contractHost)
testHostDiskContract(contractHost)

const withoutDisks = await startFakeHost({ id: '10.0.0.2' })
withoutDisks.disks = false
const { disk: _, ...contractHostWithoutDisks } = contractHost
testHostDiskContract({ ...contractHostWithoutDisks, socket: withoutDisks.socket })
