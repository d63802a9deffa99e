// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ITaskEscrow} from "../../contracts/ITaskEscrow.sol";
import {TaskEscrow} from "../../contracts/TaskEscrow.sol";
import {GasBurningWorker, ReenteringWorker, RejectingWorker} from "./Workers.sol";
import {vm} from "./Vm.sol";

/// @dev Calls the escrow as three requesters and five workers would, in any order, and keeps its own books.
/// Each action is legal (the runner fails on a revert), or tries what must be refused and fails where it isn't.
contract Handler {
    uint40 public constant DELAY = 1 hours;

    TaskEscrow public immutable escrow;
    uint256[3] private _keys = [uint256(0xA11CE), uint256(0xB0B), uint256(0xCA401)];
    address[3] public requesters;
    address[5] public workers;
    bytes32[] private _ids;
    mapping(bytes32 id => address) private _ownerOf;
    uint256 private _nextId = 1;

    // The books.
    uint256 public ethIn;
    uint256 public ethOut;
    mapping(address requester => mapping(address worker => uint256)) public signed;
    mapping(address requester => mapping(address worker => uint256)) public paid;
    mapping(address requester => mapping(address worker => uint256)) public lastSettled;
    mapping(bytes32 id => uint256) public closings;
    bool public settledFell;
    bool public paidMoreThanOnce;
    bool public lost;
    bool private immutable _auditing;
    address private _mayLose;
    address[] private _everybody;
    mapping(address account => uint256) private _had;

    /// @param auditing Whether to check I6 around each action, which takes most of the time.
    constructor(bool auditing) {
        _auditing = auditing;
        escrow = new TaskEscrow(DELAY);
        for (uint256 i = 0; i < 3; ++i) {
            requesters[i] = vm.addr(_keys[i]);
            vm.deal(requesters[i], 1e30);
        }
        workers[0] = vm.addr(0xD00D);
        workers[1] = address(new RejectingWorker());
        workers[2] = address(new GasBurningWorker());
        workers[3] = address(new ReenteringWorker(escrow));
        workers[4] = requesters[0];
        for (uint256 i = 0; i < 3; ++i) {
            _everybody.push(requesters[i]);
        }
        for (uint256 i = 0; i < 4; ++i) {
            _everybody.push(workers[i]);  // the fifth is a requester
        }
    }

    /// @dev I6: of all accounts only `_mayLose`, which the action names, has less afterwards, counting what it holds,
    /// can withdraw, and what is locked for it.
    modifier audited() {
        if (_auditing) _note();
        _;
        if (_auditing) _compare();
    }

    // ── both paths ──────────────────────────────────────────────────────────────────────────────────────────────

    function deposit(uint8 who, uint64 amount) external audited {
        _mayLose = _requester(who);
        uint256 value = uint256(amount) + 1;
        vm.prank(_requester(who));
        escrow.deposit{value: value}();
        ethIn += value;
    }

    function withdraw(uint8 who, uint96 amount) external audited {
        _mayLose = _ownerOfBalance(who);
        address account = _ownerOfBalance(who);
        uint256 available = escrow.balanceOf(account);
        if (available == 0) return;
        uint256 taken = (uint256(amount) % available) + 1;
        address to = address(uint160(0xFEE));
        vm.prank(account);
        escrow.withdraw(to, taken);
        ethOut += taken;
        require(escrow.balanceOf(account) == available - taken, "withdraw took another amount");
        vm.prank(account);
        _mustFail(abi.encodeCall(ITaskEscrow.withdraw, (to, available - taken + 1)), 0);
    }

    function warp(uint16 seconds_) external {
        vm.warp(block.timestamp + seconds_);
    }

    // ── path A ──────────────────────────────────────────────────────────────────────────────────────────────────

    function create(uint8 who, uint64 amount, uint16 ttl, bool fromBalance) external audited {
        _mayLose = _requester(who);
        address requester = _requester(who);
        uint96 reward = uint96(amount) + 1;
        bytes32 id = bytes32(_nextId++);
        uint256 value = fromBalance && escrow.balanceOf(requester) >= reward ? 0 : reward;
        vm.prank(requester);
        escrow.create{value: value}(id, reward, uint40(block.timestamp + 1 + ttl));
        ethIn += value;
        _remember(id, requester);
        vm.prank(requester);
        _mustFail(abi.encodeCall(ITaskEscrow.create, (id, reward, uint40(block.timestamp + 1 + ttl))), reward);
    }

    function createBatch(uint8 who, uint64 amount, uint8 count) external audited {
        _mayLose = _requester(who);
        address requester = _requester(who);
        uint96 reward = uint96(amount) + 1;
        bytes32[] memory ids = new bytes32[]((count % 5) + 1);
        for (uint256 i = 0; i < ids.length; ++i) {
            ids[i] = bytes32(_nextId++);
            _remember(ids[i], requester);
        }
        uint256 value = ids.length * uint256(reward);
        vm.prank(requester);
        escrow.createBatch{value: value}(ids, reward, uint40(block.timestamp + 1 hours));
        ethIn += value;
    }

    function complete(uint256 which, uint8 who, bool success) external audited {
        (bool found, bytes32 id, address requester) = _pick(which);
        if (!found) return;
        address worker = workers[who % 5];
        bool open = escrow.taskOf(requester, id).state == ITaskEscrow.TaskState.Open;
        bytes memory call_ = abi.encodeCall(ITaskEscrow.complete, (id, worker, bytes32(which), success));
        if (!open) {
            vm.prank(requester);
            _mustFail(call_, 0);
            return;
        }
        uint96 reward = escrow.taskOf(requester, id).reward;
        uint256 before = worker.balance + escrow.balanceOf(worker);
        uint256 held = worker.balance;
        vm.prank(requester);
        escrow.complete(id, worker, bytes32(which), success);
        if (success) {
            ethOut += worker.balance - held;
            if (worker.balance + escrow.balanceOf(worker) != before + reward) paidMoreThanOnce = true;
        }
        closings[id] += 1;
        vm.prank(requester);
        _mustFail(call_, 0);
    }

    function completeBatch(uint256 first, uint8 who, uint8 other, bool lastFails) external audited {
        (bool found,, address requester) = _pick(first);
        if (!found) return;
        ITaskEscrow.Completion[] memory items = new ITaskEscrow.Completion[](4);
        uint256 count = 0;
        for (uint256 i = 0; i < _ids.length && count < 4; ++i) {
            bytes32 id = _ids[i];
            if (_ownerOf[id] != requester) continue;
            if (escrow.taskOf(requester, id).state != ITaskEscrow.TaskState.Open) continue;
            address worker = count < 2 ? workers[who % 5] : workers[other % 5];
            items[count++] = ITaskEscrow.Completion(id, worker, bytes32(i), !(lastFails && count == 3));
            closings[id] += 1;
        }
        ITaskEscrow.Completion[] memory batch = new ITaskEscrow.Completion[](count);
        for (uint256 i = 0; i < count; ++i) {
            batch[i] = items[i];
        }
        uint256 held = _workersHold();
        vm.prank(requester);
        escrow.completeBatch(batch);
        ethOut += _workersHold() - held;
    }

    function refund(uint256 which) external audited {
        (bool found, bytes32 id, address requester) = _pick(which);
        if (!found) return;
        ITaskEscrow.Task memory task = escrow.taskOf(requester, id);
        bytes32[] memory ids = new bytes32[](1);
        ids[0] = id;
        if (task.state != ITaskEscrow.TaskState.Open || block.timestamp <= task.deadline) {
            vm.prank(requester);
            _mustFail(abi.encodeCall(ITaskEscrow.refund, (ids)), 0);
            return;
        }
        vm.prank(requester);
        escrow.refund(ids);
        closings[id] += 1;
    }

    // ── path B ──────────────────────────────────────────────────────────────────────────────────────────────────

    function fund(uint8 who, uint8 worker, uint64 amount) external audited {
        _mayLose = _requester(who);
        address requester = _requester(who);
        ITaskEscrow.Funding[] memory items = new ITaskEscrow.Funding[](1);
        items[0] = ITaskEscrow.Funding(workers[worker % 5], uint96(amount) + 1);
        vm.prank(requester);
        escrow.fund{value: items[0].amount}(items);
        ethIn += items[0].amount;
    }

    function redeem(uint8 who, uint8 which, uint64 more, bool inBatch) external audited {
        address requester = _requester(who);
        address worker = workers[which % 5];
        ITaskEscrow.Channel memory channel = escrow.channelOf(requester, worker);
        uint96 cumulative = channel.settled + uint96(more);  // often more than is locked: over-signed
        ITaskEscrow.Voucher memory voucher = _voucher(who, worker, cumulative);
        if (cumulative > signed[requester][worker]) signed[requester][worker] = cumulative;
        uint256 credit = worker == requester ? 0 : escrow.balanceOf(worker);
        uint256 held = worker.balance;
        bool nothing = more == 0 || channel.locked == 0;
        if (inBatch) {
            ITaskEscrow.Voucher[] memory batch = new ITaskEscrow.Voucher[](1);
            batch[0] = voucher;
            escrow.redeemBatch(batch);
        } else if (nothing) {
            _mustFail(abi.encodeCall(ITaskEscrow.redeem, (voucher)), 0);
            return;
        } else {
            escrow.redeem(voucher);
        }
        ethOut += worker.balance - held;
        uint256 got = (worker.balance - held) + (worker == requester ? 0 : escrow.balanceOf(worker) - credit);
        _settled(requester, worker, got);
        voucher.cumulative += 1;  // not what was signed
        _mustFail(abi.encodeCall(ITaskEscrow.redeem, (voucher)), 0);
    }

    function settle(uint8 who, uint8 first, uint8 second, uint64 more) external audited {
        address requester = _requester(who);
        ITaskEscrow.Settlement[] memory items = new ITaskEscrow.Settlement[](2);
        uint256[2] memory held;
        for (uint256 i = 0; i < 2; ++i) {
            address worker = workers[(i == 0 ? first : second) % 5];
            uint96 cumulative = escrow.channelOf(requester, worker).settled + uint96(more);
            if (cumulative > signed[requester][worker]) signed[requester][worker] = cumulative;
            items[i] = ITaskEscrow.Settlement(worker, cumulative, bytes32(i));
            held[i] = worker.balance + (worker == requester ? 0 : escrow.balanceOf(worker));
        }
        uint256 all = _workersHold();
        vm.prank(requester);
        escrow.settleBatch(items);
        ethOut += _workersHold() - all;
        for (uint256 i = 0; i < (items[0].worker == items[1].worker ? 1 : 2); ++i) {
            address worker = items[i].worker;
            _settled(requester, worker, worker.balance + (worker == requester ? 0 : escrow.balanceOf(worker)) - held[i]);
        }
    }

    function startExit(uint8 who, uint8 worker) external audited {
        vm.prank(_requester(who));
        escrow.startExit(_one(workers[worker % 5]));
    }

    function finishExit(uint8 who, uint8 which) external audited {
        _mayLose = workers[which % 5];
        address requester = _requester(who);
        address worker = workers[which % 5];
        ITaskEscrow.Channel memory channel = escrow.channelOf(requester, worker);
        bool early = channel.exitAt == 0 || block.timestamp < channel.exitAt;
        if (channel.locked != 0 && early) {
            vm.prank(requester);
            _mustFail(abi.encodeCall(ITaskEscrow.finishExit, (_one(worker))), 0);
            return;
        }
        vm.prank(requester);
        escrow.finishExit(_one(worker));
    }

    function release(uint8 who, uint8 which) external audited {
        _mayLose = workers[which % 5];
        address requester = _requester(who);
        address worker = workers[which % 5];
        if (escrow.channelOf(requester, worker).locked == 0) return;
        vm.prank(worker);
        escrow.release(requester);
    }

    // ── what the invariants read ────────────────────────────────────────────────────────────────────────────────

    function owed() external view returns (uint256 total) {
        for (uint256 i = 0; i < 3; ++i) {
            total += escrow.balanceOf(requesters[i]);
            for (uint256 j = 0; j < 5; ++j) {
                total += escrow.channelOf(requesters[i], workers[j]).locked;
            }
        }
        for (uint256 j = 0; j < 4; ++j) {
            total += escrow.balanceOf(workers[j]);  // the fifth is a requester
        }
        for (uint256 i = 0; i < _ids.length; ++i) {
            ITaskEscrow.Task memory task = escrow.taskOf(_ownerOf[_ids[i]], _ids[i]);
            if (task.state == ITaskEscrow.TaskState.Open) total += task.reward;
        }
    }

    function idCount() external view returns (uint256) {
        return _ids.length;
    }

    function closingsAt(uint256 index) external view returns (uint256 count, bool open) {
        bytes32 id = _ids[index];
        return (closings[id], escrow.taskOf(_ownerOf[id], id).state == ITaskEscrow.TaskState.Open);
    }

    function _note() private {
        _mayLose = address(0);
        for (uint256 i = 0; i < _everybody.length; ++i) {
            _had[_everybody[i]] = _worth(_everybody[i]);
        }
    }

    function _compare() private {
        for (uint256 i = 0; i < _everybody.length; ++i) {
            address account = _everybody[i];
            if (account != _mayLose && _worth(account) < _had[account]) lost = true;
        }
    }

    function _worth(address account) private view returns (uint256 total) {
        total = account.balance + escrow.balanceOf(account);
        for (uint256 i = 0; i < 3; ++i) {
            total += escrow.channelOf(requesters[i], account).locked;
        }
    }

    // ── plumbing ────────────────────────────────────────────────────────────────────────────────────────────────

    function _settled(address requester, address worker, uint256 got) private {
        paid[requester][worker] += got;
        uint256 settled = escrow.channelOf(requester, worker).settled;
        if (settled < lastSettled[requester][worker]) settledFell = true;
        lastSettled[requester][worker] = settled;
    }

    function _voucher(uint8 who, address worker, uint96 cumulative)
        private
        view
        returns (ITaskEscrow.Voucher memory voucher)
    {
        voucher = ITaskEscrow.Voucher(_requester(who), worker, cumulative, bytes32(uint256(cumulative)), 0, 0);
        bytes32 digest = escrow.voucherDigest(voucher.requester, worker, cumulative, voucher.tasksRoot);
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(_keys[who % 3], digest);
        voucher.r = r;
        voucher.vs = bytes32(uint256(s) | (uint256(v - 27) << 255));
    }

    function _mustFail(bytes memory data, uint256 value) private {
        (bool done,) = address(escrow).call{value: value}(data);
        require(!done, "what must be refused was done");
    }

    function _remember(bytes32 id, address requester) private {
        _ids.push(id);
        _ownerOf[id] = requester;
    }

    function _pick(uint256 which) private view returns (bool found, bytes32 id, address requester) {
        if (_ids.length == 0) return (false, 0, address(0));
        id = _ids[which % _ids.length];
        return (true, id, _ownerOf[id]);
    }

    function _workersHold() private view returns (uint256 total) {
        for (uint256 i = 0; i < 5; ++i) {
            total += workers[i].balance;
        }
    }

    function _requester(uint8 who) private view returns (address) {
        return requesters[who % 3];
    }

    function _ownerOfBalance(uint8 who) private view returns (address) {
        return who % 8 < 3 ? _requester(who) : workers[who % 5];
    }

    function _one(address worker) private pure returns (address[] memory list) {
        list = new address[](1);
        list[0] = worker;
    }
}
