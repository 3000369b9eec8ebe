/** All rows, in the order in which they run: those that fill the database are last. */
import type { Row } from './row.ts'
import { accountMetricsRow, accountSeriesRow } from './rows/account-metrics.ts'
import { createBurst10Row, createBurst20Row, createRow, createVsBootRow } from './rows/create.ts'
import { execRow } from './rows/exec.ts'
import { pullRow, pushRow } from './rows/files.ts'
import { fork10Row, forkRow, liveForkRow } from './rows/fork.ts'
import { gatewayDeployRow, gatewayProxyRow, gatewayVerifyRow } from './rows/gateway.ts'
import { getSandboxRow, whoamiRow } from './rows/get-requests.ts'
import { ingressRateRow, ingressTripRow } from './rows/ingress.ts'
import { idleMemoryRow, uploadRowOf1G, uploadRowOf10G } from './rows/memory.ts'
import { metricsSamplingRow } from './rows/metrics-sampling.ts'
import { nativeCreateCpuRow, nativeCreateRateRow, nativeCreateRow } from './rows/native-create.ts'
import { nativeExecRateRow, nativeExecRow } from './rows/native-exec.ts'
import {
  nativeEchoRow,
  nativeProcessStartRow,
  nativePullRow,
  nativePushRow,
  nativeTunnelDownRow,
  nativeTunnelTripRow,
  nativeTunnelUpRow,
} from './rows/native-guest.ts'
import { nativeIngressRateRow, nativeIngressTripRow } from './rows/native-ingress.ts'
import {
  net1000AskRow,
  net1000ChangeRow,
  net1000ClaimRow,
  netClaimRow,
  netOpenRow,
  netOutProxyRow,
  netOutRulesRow,
  netRulesRow,
  netSetUpRow,
  netTearDownRow,
} from './rows/network.ts'
import { pause13Row, pause115Row, pauseAgainRow, pauseBytesRow, resumeColdRow, resumeRow } from './rows/pause.ts'
import { connectRow, processStartRow, ptyEchoPortRow, ptyEchoRow } from './rows/processes.ts'
import { resizeRow } from './rows/resize.ts'
import { listByStatusRow, listRow } from './rows/sandbox-list.ts'
import { templateBuildRow, templateCreateRow, templateRebuildRow } from './rows/templates.ts'
import { tunnelDownRow, tunnels100Row, tunnelTripRow, tunnelUpRow } from './rows/tunnels.ts'
import { vmmMemoryRow } from './rows/vmm-memory.ts'
import { webhooksRow } from './rows/webhooks.ts'

export const ROWS: readonly Row[] = [
  ...[createRow, createBurst10Row, createBurst20Row, createVsBootRow, execRow, pushRow, pullRow],
  ...[
    processStartRow,
    ptyEchoRow,
    ptyEchoPortRow,
    connectRow,
    tunnelTripRow,
    tunnelDownRow,
    tunnelUpRow,
    tunnels100Row,
    ingressTripRow,
    ingressRateRow,
  ],
  ...[
    nativeCreateRow,
    nativeCreateRateRow,
    nativeCreateCpuRow,
    nativeExecRow,
    nativeExecRateRow,
    nativeProcessStartRow,
    nativeEchoRow,
  ],
  ...[nativePushRow, nativePullRow, nativeTunnelTripRow, nativeTunnelDownRow, nativeTunnelUpRow],
  ...[nativeIngressTripRow, nativeIngressRateRow],
  ...[gatewayVerifyRow, gatewayDeployRow, gatewayProxyRow],
  ...[idleMemoryRow, vmmMemoryRow, uploadRowOf1G, uploadRowOf10G, metricsSamplingRow],
  ...[pause13Row, pause115Row, pauseAgainRow, pauseBytesRow, resumeRow, resumeColdRow, forkRow, fork10Row, liveForkRow],
  resizeRow,
  ...[templateBuildRow, templateRebuildRow, templateCreateRow],
  ...[netSetUpRow, netTearDownRow, netClaimRow, netRulesRow, netOpenRow, netOutRulesRow, netOutProxyRow],
  // Their thousand sandboxes stay until the end of the run, so they follow the other network rows.
  ...[net1000AskRow, net1000ChangeRow, net1000ClaimRow],
  ...[webhooksRow, whoamiRow, getSandboxRow, listRow, listByStatusRow, accountMetricsRow, accountSeriesRow],
]
